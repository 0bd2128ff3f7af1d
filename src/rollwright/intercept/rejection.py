"""A request that is not served, and the words for it. The dialect gives the words their shape."""

from __future__ import annotations

from rollwright.dialects import Dialect
from rollwright.wire import EngineRefused, RolloutError

FINAL = {"x-should-retry": "false"}
"""Tells SDKs that asking again will not help."""


class Rejected(Exception):
    """Ends one request with an error answer. Never leaves this room."""

    def __init__(
        self, status: int, message: str, kind: str = "", *, headers: dict[str, str] | None = None, close: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.headers = headers or {}
        self.close = close
        """The connection cannot be used again, because the body was not read."""

    def body(self, dialect: Dialect) -> bytes:
        return dialect.write_error(self.status, self.message, self.kind)


def told(error: RolloutError) -> Rejected:
    """A failure of the rollout as its program hears it. The engine's client has tried again already."""
    status = 400 if isinstance(error, EngineRefused) else 503
    return Rejected(status, str(error), headers=FINAL)
