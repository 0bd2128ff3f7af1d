"""What warm scripts did in this process, in numbers. Counting changes nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class WarmStats:
    """Counts since the process began. `repr` is a status line."""

    calls: int = 0
    """Scripts that were asked for warm, either way."""
    forked: int = 0
    """Answered by a fork of a zygote."""
    shared: int = 0
    """Answered by a shared worker."""
    cold: Counter[str] = field(default_factory=Counter)
    """Answered cold after all, by reason."""
    started: int = 0
    """Zygotes and shared workers that were started."""
    replaced: int = 0
    """Of these, those that took the place of one that died, grew too large or served long enough."""

    def __repr__(self) -> str:
        cold = ", ".join(f"{count} cold ({reason})" for reason, count in sorted(self.cold.items()))
        return (
            f"<WarmStats {self.calls} calls: {self.forked} forked, {self.shared} shared, {cold or '0 cold'}; "
            f"{self.started} started, {self.replaced} replaced>"
        )


stats = WarmStats()
"""Of this process."""
