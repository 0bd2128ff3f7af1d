"""Resource limits of one program, set before its first instruction.

A few lines of POSIX shell set the limits and then become the program: `preexec_fn` would force a full fork of this
process and run Python between fork and exec, which is slow from a fat parent and can deadlock with threads; prlimit(2)
after the spawn loses the race against a program that forks at once. The shell costs 0.7 ms where the spawn costs 0.9.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

_SHELL = "/bin/sh"
_WAIT = "read -r rollwright_gate || exit 125"
"""One line of standard input, read byte by byte as POSIX asks of a shell; without it nothing is run."""


_OPTIONS = {"CORE": ("c", 1), "DATA": ("d", 1024), "CPU": ("t", 1), "FSIZE": ("f", 512), "NOFILE": ("n", 1)}
"""The shell's option for each limit, and its unit."""


class Gate(Enum):
    """How the shell becomes the program."""

    NONE = 'exec "$@"'
    ON_STDIN = f'{_WAIT}; exec "$@"'
    """After a line on standard input, the rest of which is the program's."""
    BEFORE_NULL = f'{_WAIT}; exec "$@" < /dev/null'
    """After a line on standard input; the program has nothing to read."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Zero means that the host's own limit stays."""

    data_mb: int = 0
    """Private writable memory of each process. Address space would be the wrong measure: runtimes of JavaScript, Go and
    Java reserve many times what they use."""
    cpu_s: int = 0
    file_mb: int = 0
    open_files: int = 0

    def wrap(self, argv: Sequence[str], *, gate: Gate = Gate.NONE) -> list[str]:
        """The command line that sets these limits, waits at the gate and then becomes `argv`."""
        return [_SHELL, "-c", f"{self._script()}; {gate.value}", "sh", *argv]

    def numbers(self) -> dict[str, int]:
        """Each limit by the name that follows RLIMIT_, in units of setrlimit and in steps that the shell can say."""
        told = {"CORE": 0}
        # A limit can only be lowered, so the host's hard one wins.
        if self.data_mb and sys.platform == "linux":
            told["DATA"] = _lower(resource.RLIMIT_DATA, self.data_mb << 20) // 1024 * 1024
        if self.cpu_s:
            told["CPU"] = _lower(resource.RLIMIT_CPU, self.cpu_s)
        if self.file_mb:
            told["FSIZE"] = _lower(resource.RLIMIT_FSIZE, self.file_mb << 20) // 512 * 512
        if self.open_files:
            told["NOFILE"] = _lower(resource.RLIMIT_NOFILE, self.open_files)
        return told

    def _script(self) -> str:
        told = ((*_OPTIONS[name], value) for name, value in self.numbers().items())
        return "; ".join(f"ulimit -{option} {value // unit}" for option, unit, value in told)


def _lower(kind: int, wanted: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
