"""The dialects by name."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from rollwright.wire import UsageError

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
    near = get_close_matches(name, DIALECTS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(DIALECTS)}."
    raise UsageError(f"dialect {name!r} is not known; {hint}")


def write_models(names: Sequence[str]) -> bytes:
    """The body of GET /v1/models."""
    models = [{"id": name, "object": "model", "created": 0, "owned_by": "rollwright"} for name in names]
    return dumps({"object": "list", "data": models})
