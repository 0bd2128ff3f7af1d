"""What a command needs of the process it stands for, however that process came to be."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Spawned(Protocol):
    """The leader of a session."""

    @property
    def exited(self) -> asyncio.Future[None]: ...
    @property
    def pid(self) -> int: ...
    def kill_group(self) -> None:
        """End it with all that stayed in its group."""
        ...

    def reap(self) -> int:
        """The exit status of an ended program; minus the signal's number where a signal ended it."""
        ...

    def release(self) -> None:
        """Let go of it, now or when it ends."""
        ...
