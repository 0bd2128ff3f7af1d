"""Settings of the interceptor. Each is a bound: on bytes, on time, or on how many at once."""

from __future__ import annotations

import msgspec

from rollwright.wire import UsageError

MIB = 2**20


class InterceptConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The server that carries model calls of programs."""

    host: str = "127.0.0.1"
    """Address it listens on. Boxes reach it through what their runtime forwards."""
    port: int = 0
    """0 takes any free port."""
    max_body_bytes: int = 64 * MIB
    """Largest request; a longer one is refused before it is read."""
    max_bytes_in_flight: int = 512 * MIB
    """Most bytes of requests that are being read, over all rollouts. Beyond it requests wait their turn."""
    budget_timeout_s: float = 30.0
    """Longest wait for that turn."""
    body_timeout_s: float = 120.0
    """Longest time for a body to arrive."""
    max_open_calls: int = 64
    """Requests of one rollout that are served at the same time."""
    max_connections: int = 4096
    """Connections over all rollouts; one more is closed as it comes."""
    idle_timeout_s: float = 75.0
    """Longest time between the answer to one request and the headers of the next, and for the first headers to come."""
    keepalive_s: float = 10.0
    """A stream that is silent for so long carries a comment, so that nobody on the way takes it for dead."""
    retry_grace_s: float = 2.0
    """How long a call goes on without its client, where that client is of a kind that comes back and says so."""
    drain_timeout_s: float = 120.0
    """Longest time for a slow client to take what was written for it."""
    kept_answers: int = 8
    """Answers of one rollout that are kept for clients that ask again."""

    def __post_init__(self) -> None:
        for name, value in msgspec.structs.asdict(self).items():
            if isinstance(value, str):
                continue
            lowest = 0 if name in ("port", "kept_answers", "retry_grace_s") else 1e-3
            # `not >=` rather than `<`: NaN is refused too.
            if not value >= lowest:
                raise UsageError(f"intercept.{name} must be {lowest:g} or more, got {value}")
