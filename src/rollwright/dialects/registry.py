"""The dialects by name."""

from __future__ import annotations

from collections.abc import Sequence

from rollwright.wire import UsageError
from rollwright.wire.hints import hint

from .chat import ChatDialect
from .contract import Dialect
from .jsontext import dumps
from .messages import MessagesDialect
from .responses import ResponsesDialect

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect for dialect in (ChatDialect(), ResponsesDialect(), MessagesDialect())
}


def dialect_named(name: str) -> Dialect:
    if name in DIALECTS:
        return DIALECTS[name]
    raise UsageError(f"dialect {name!r} is not known; {hint(name, DIALECTS)}")


def write_models(names: Sequence[str]) -> bytes:
    """The body of GET /v1/models."""
    models = [{"id": name, "object": "model", "created": 0, "owned_by": "rollwright"} for name in names]
    return dumps({"object": "list", "data": models})
