"""What a box promises. Every kind is held to `runtimes.testing.check_runtime`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self

import msgspec

from .state import BoxState

Warm = bool | Literal["shared"]


class Reach(StrEnum):
    """What a program inside the box can talk to."""

    HOST = "host"
    """The host's loopback and whatever the host reaches."""
    PROXY_ONLY = "proxy_only"
    """Nothing but the addresses that Rollwright forwards."""


class Ending(StrEnum):
    """How a command ended."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    TIMED_OUT = "timed_out"


class ExecResult(msgspec.Struct, frozen=True):
    """What a command answered. A failing command is a value, not an error."""

    ending: Ending
    exit_code: int
    """The program's own; 128 + signal where a signal ended it; 124 where time ran out; 127 for a missing program."""
    stdout: bytes
    stderr: bytes
    stdout_dropped: int = 0
    """Bytes past the output cap, read and thrown away."""
    stderr_dropped: int = 0
    queue_s: float = 0.0
    """Waiting for a CPU slot. Not part of the deadline (law 6)."""
    wall_s: float = 0.0

    @property
    def ok(self) -> bool:
        return self.ending is Ending.EXITED and self.exit_code == 0

    @property
    def text(self) -> str:
        """Stdout as text; bytes that are not UTF-8 become U+FFFD."""
        return self.stdout.decode("utf-8", "replace")


class RuntimeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every kind of box has."""

    persistent: bool = False
    """Lease boxes from a pool that lives as long as the environment serves, instead of one box per rollout."""

    @property
    def box_lifetime_s(self) -> float | None:
        """After this time a provider ends the box by itself; None where nobody does."""
        return None

    @property
    def reset_is_a_start(self) -> bool:
        """A reset makes a new box in the place of the old one. A pool ends a used box instead and makes another, so
        that whatever is made is made at its pace."""
        return False


class Process(Protocol):
    """A program that is talked to while it runs. Whoever opens it closes it."""

    async def write(self, data: bytes) -> None:
        """Feed its stdin. Of several at once each goes in whole."""
        ...

    async def close_stdin(self) -> None: ...
    async def read(self, limit: int = 65536) -> bytes:
        """The next bytes of stdout; b"" at its end. RuntimeLost where the box was reset, stopped or lost meanwhile."""
        ...

    async def wait(self, timeout_s: float) -> ExecResult:
        """Stdout here is what was not read."""
        ...

    async def kill(self) -> None:
        """End it with all its children."""
        ...

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None: ...


class Runtime(Protocol):
    """A box that runs commands. It knows nothing of rollouts, rewards or tokens.

    Paths are relative to the workspace or absolute inside the box. `env` is added to the allow-listed environment of
    the box. Operations on a box that is not running raise RuntimeLost; operations that it refuses raise RuntimeFault.
    """

    reach: Reach

    @property
    def name(self) -> str:
        """Kind and id, for logs and traces."""
        ...

    @property
    def shows_cache(self) -> bool:
        """Whether programs in it can read Rollwright's cache directory of this host, where fetched programs lie."""
        ...

    async def start(self) -> None: ...
    async def stop(self) -> None:
        """End everything in the box and free it. Idempotent."""
        ...

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        cwd: str = "",
        timeout_s: float = 60.0,
        output_limit: int | None = None,
    ) -> ExecResult:
        """Run a program to its end. At the deadline, or when the caller is cancelled, it is killed with its children.

        Children that outlive a program which ended by itself live on until `reset` or `stop`; the output they still
        write after it is not waited for. `output_limit` bounds each stream; None is the box's own bound.
        """
        ...

    async def open_process(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = ""
    ) -> Process: ...

    async def read(self, path: str) -> bytes:
        """The content of a regular file."""
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Make or replace a file, and the directories above it."""
        ...

    async def run_script(
        self,
        script: Path,
        args: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        warm: Warm = False,
        takes_slot: bool = True,
    ) -> ExecResult:
        """Run a PEP 723 script with the dependencies it declares, in the workspace.

        `warm` lets the box reuse what it has loaded. It changes the price of an answer and never the answer (law 1), so
        a kind that has nothing loaded answers cold. The deadline begins when a CPU slot is taken; `queue_s` tells the
        wait before it. A program that mostly waits for others, such as an agent for its model, takes no slot.
        """
        ...

    async def expose(self, port: int) -> str:
        """The URL by which this process reaches a server that listens on `port` inside the box. It is the same until
        the next reset."""
        ...

    async def forward(self, port: int) -> str:
        """The URL by which a program inside the box reaches a server that listens on `port` of this host's loopback.
        It is the same until the next reset, and works also where the box has no other network."""
        ...

    async def alive(self) -> bool: ...
    async def inspect(self) -> BoxState:
        """Everything that one user could leave for the next, as far as this kind can see it."""
        ...

    async def reset(self) -> None:
        """Give the next user a box as it was right after `start`.

        What runs in it is killed, and its waiters get RuntimeLost. A reset that fails or is cancelled leaves a box that
        can only be stopped.
        """
        ...
