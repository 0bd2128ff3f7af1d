"""The dialects by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    """The body of GET /v1/models, for clients of either vendor."""
    ends = {"has_more": False, "first_id": names[0] if names else None, "last_id": names[-1] if names else None}
    return dumps({"object": "list", "data": [_model(name) for name in names], **ends})


def write_model(name: str) -> bytes:
    """The body of GET /v1/models/NAME."""
    return dumps(_model(name))


def _model(name: str) -> dict[str, Any]:
    """As OpenAI tells one, and as Anthropic does. When it was made, nobody knows here."""
    theirs = {"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
    return {"id": name, "object": "model", "created": 0, "owned_by": "rollwright", **theirs}
