"""What a pool may hold, for how long, and how fast it may grow. What the boxes are like is another config."""

from __future__ import annotations

import math

import msgspec

from rollwright.wire import UsageError

_AT_LEAST_ONE = ("max_boxes", "max_creating", "create_tries", "breaker_failures")
_SECONDS = ("idle_ttl_s", "max_age_s", "breaker_s", "wait_s", "start_timeout_s", "reset_timeout_s")


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shelves that leased boxes come from and go back to, where runtime.persistent is true."""

    max_boxes: int = 256
    """Most boxes at once, those that are being made or freed included."""
    max_per_key: int = 0
    """Most boxes of one resolved runtime config, such as one image; 0 is max_boxes."""
    min_warm: int = 0
    """Clean boxes kept ready ahead of demand for each config that was asked for within idle_ttl_s."""
    idle_ttl_s: float = 300.0
    """A box that nobody wanted for so long is freed."""
    max_uses: int = 1000
    """A box is freed after so many leases; 0 is no bound."""
    max_age_s: float = 3600.0
    """A box older than this is freed instead of handed out. Where its provider ends boxes by itself, half of that
    lifetime counts if it is shorter."""
    create_per_s: float = 100.0
    """Boxes begun per second once a burst of a second's worth is spent; 0 is no bound. Those that take the place of a
    used or lost box count too."""
    max_creating: int = 64
    """Boxes that are being made at the same time."""
    create_tries: int = 3
    """A rollout fails when so many boxes in a row could not be made for it."""
    breaker_failures: int = 5
    """After so many failures in a row, boxes of that config are no longer made for a while, and whoever needs one fails
    at once."""
    breaker_s: float = 30.0
    """How long that while is; then one box is tried."""
    wait_s: float = 3600.0
    """Longest wait for a box. It is told apart and does not count against the rollout's own limits."""
    start_timeout_s: float = 300.0
    """Longest time for one box to start."""
    reset_timeout_s: float = 60.0
    """Longest time for a box to be reset and looked at; a box that takes longer is freed."""

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise UsageError(f"pool.{name} is {getattr(self, name)}; set it to 1 or more")
        for name in ("max_per_key", "min_warm", "max_uses", "create_per_s"):
            if not (getattr(self, name) >= 0 and math.isfinite(getattr(self, name))):
                raise UsageError(f"pool.{name} is {getattr(self, name)}; set it to 0 or more")
        for name in _SECONDS:
            # NaN is refused too.
            if not getattr(self, name) > 0:
                raise UsageError(f"pool.{name} is {getattr(self, name)}; set it to more than 0")

    @property
    def shelf_room(self) -> int:
        """Most boxes of one shelf."""
        return min(self.max_per_key or self.max_boxes, self.max_boxes)
