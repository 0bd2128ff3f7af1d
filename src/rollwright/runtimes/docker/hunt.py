"""Ending a program in a container with all its children. The engine can start programs in a container but not end them.

Programs carry the mark of their command in their environment, and so do their children, sessions of their own or not;
children that wiped it are found below their parents. Where this process sees the container's processes, it hunts from
outside: fast, and a box that has used up its processes cannot hinder it. Elsewhere a small shell script hunts inside.
Not found: a process that wiped its environment and lost its parent. It lives on until the box is reset or stopped,
which ends the whole container.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from rollwright.runtimes.local.census import MARK, Quarry, grasp_tree, strike_handles, sweep
from rollwright.runtimes.local.threads import in_thread

KILL_S = 10.0
"""How long ending a tree may take before the whole box is ended."""

Hunt = Callable[[str, int], Awaitable[None]]
"""Ends what carries a mark, and what descends from a host process id (0: unknown). RuntimeFault where some survive."""

# Words: what to look for in the environment of processes. It ends when a look finds none.
SCRIPT = """
while :; do
  pids=
  for p in /proc/[0-9]*; do
    tr '\\0' '\\n' 2>/dev/null < "$p/environ" | grep -qxF -e "$1" && pids="$pids ${p#/proc/}"
  done 2>/dev/null
  [ -n "$pids" ] || exit 0
  more=1
  while [ -n "$more" ]; do
    more=
    for word in $(grep -s '^PPid:' /proc/[0-9]*/status); do
      case $word in
        /proc/*) pid=${word#/proc/}; pid=${pid%%/*};;
        *) case " $pids " in *" $pid "*) ;; *" $word "*) pids="$pids $pid"; more=1;; esac;;
      esac
    done
  done
  kill -9 $pids 2>/dev/null
done
"""


def sees(pid: int, container_id: str) -> bool:
    """Whether `pid`, which the engine calls the container's first process, is that same process for us.

    An engine behind a virtual machine or in another process namespace tells numbers that mean somebody else here.
    """
    try:
        return pid > 0 and container_id in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False


async def hunt_outside(mark: str, pid: int, since: float) -> None:
    """End what carries `mark`, from the host. The program itself dies first: it would write of its children's death."""
    if pid:
        await in_thread(_strike_tree, pid, mark)
    await sweep(Quarry(mark, "", since), within_s=KILL_S)


def _strike_tree(pid: int, mark: str) -> None:
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        # Looked at after the handle is held, so that a reused id is never hit.
        if not _carries(pid, mark):
            return
        below = grasp_tree(pid)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        strike_handles(below)
    finally:
        os.close(handle)


def _carries(pid: int, mark: str) -> bool:
    try:
        return f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
