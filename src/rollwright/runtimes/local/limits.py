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

    def _script(self) -> str:
        # Units of the shell: 1024 bytes for -d, 512 for -f. A limit can only be lowered, so the host's hard one wins.
        steps = ["ulimit -c 0"]
        if self.data_mb and sys.platform == "linux":
            steps.append(f"ulimit -d {_lower(resource.RLIMIT_DATA, self.data_mb << 20) // 1024}")
        if self.cpu_s:
            steps.append(f"ulimit -t {_lower(resource.RLIMIT_CPU, self.cpu_s)}")
        if self.file_mb:
            steps.append(f"ulimit -f {_lower(resource.RLIMIT_FSIZE, self.file_mb << 20) // 512}")
        if self.open_files:
            steps.append(f"ulimit -n {_lower(resource.RLIMIT_NOFILE, self.open_files)}")
        return "; ".join(steps)


def _lower(kind: int, wanted: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
