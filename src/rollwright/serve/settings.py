"""What a broker is told at its start, and what it tells whoever started it: JSON."""

from __future__ import annotations

import msgspec

from .slots import SlotSettings
from .wiring import Address, Locks

ORDER = "ROLLWRIGHT_BROKER_ORDER"


class BrokerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a broker is told at its start. It holds no secret."""

    workers: int = 1
    """Worker processes that it has started; others may join."""
    capacity: int = 64
    """Rollouts at once in each."""
    host: str = ""
    """Import path of what the workers serve."""
    options: str = "{}"
    """JSON for it."""
    window: int = 4096
    """Rollouts one client may have in the broker at once."""
    queue: int = 65536
    """Rollouts that may wait, over all clients."""
    queue_bytes: int = 4 * 2**30
    """Bytes of requests that may be in the broker, over all clients."""
    reply_bytes: int = 2 * 2**30
    """Bytes of results that one client may have unread; beyond it nothing more is begun for it."""
    io_threads: int = 4
    """Threads of the broker's sockets over TCP, which encrypt and decrypt, each for its share of the peers."""
    redispatches: int = 2
    """How often a request runs again after its worker died."""
    slots: SlotSettings = SlotSettings()
    """How patient the broker is with its workers."""


class BrokerOrder(msgspec.Struct, frozen=True):
    """What a broker process is told. It holds the secret key, so it goes by the environment."""

    settings: BrokerSettings
    locks: Locks
    launcher: str = "local"
    launcher_options: str = "{}"
    """JSON for the launcher."""


class Note(msgspec.Struct, frozen=True, tag=True):
    """One line of the broker's stdout. What it has written there outlives it, in the pipe."""

    def line(self) -> str:
        return msgspec.json.encode(self).decode()


class Listens(Note, frozen=True):
    """The first line of a broker that works."""

    address: Address


class Unusable(Note, frozen=True):
    """The first and last line of one that was told what cannot be done."""

    why: str


class Scaled(Note, frozen=True):
    """Somebody wants so many workers from now on. A broker that is born again is told so."""

    workers: int


Notes = Listens | Unusable | Scaled
