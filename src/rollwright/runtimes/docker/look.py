"""What one user of a container could leave for the next.

The engine tells what differs from the image. What it does not count (places in memory, the files it binds over /etc),
processes, ports and mounts are read from outside where this process sees the container's, else by a shell inside.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path

from rollwright.runtimes.contract import ExecResult
from rollwright.runtimes.local.threads import in_thread
from rollwright.runtimes.state import BoxState
from rollwright.wire import RuntimeFault

from .api import Engine
from .containers import Container
from .spec import FIRST

Sh = Callable[[str, list[str]], Awaitable[ExecResult]]
_KINDS = {0: "changed", 1: "added", 2: "deleted"}
_SLEEP = "sleep 2147483647"
_SHELL = f"sh -c {FIRST}"
_LISTEN = "0A"
_RESOLVER = "0B00007F"
"""127.0.0.11, where the engine itself answers for names, on ports that it chooses anew for each container."""

# Words: a line that parts the answers, then places in memory.
_SCRIPT = """
mark=$1; shift
for p in /proc/[0-9]*; do [ "$p" = "/proc/$$" ] || { tr '\\0' ' ' < "$p/cmdline"; echo; }; done 2>/dev/null
echo "$mark"
cat /proc/net/tcp /proc/net/tcp6 /proc/net/udp /proc/net/udp6 2>/dev/null; echo "$mark"
cat /proc/1/mountinfo; echo "$mark"
LC_ALL=C ls -lnAR "$@" | grep -v '^total'
"""


async def look(
    engine: Engine, container: Container, places: list[str], environment: dict[str, str], sh: Sh
) -> BoxState:
    """The state of a container. `places` are those that programs may write in memory."""
    told = (await engine.call("GET", f"/containers/{container.id}/changes")).value or []
    files = {str(one["Path"]): _KINDS.get(one["Kind"], "changed") for one in told}
    if container.pid:
        seen = await in_thread(_look_outside, container.pid, places)
    else:
        seen = await _look_inside(sh, places)
    return BoxState(files | dict(seen.files), seen.processes, seen.ports, environment, seen.mounts)


def _look_outside(pid: int, places: list[str]) -> BoxState:
    try:
        root = f"/proc/{pid}/root"
        files = {path: word for place in places for path, word in _tree(root, place)}
        files |= {name: _digest(f"{root}{name}") for name in ("/etc/hosts", "/etc/resolv.conf", "/etc/hostname")}
        tables = "".join(_text(f"/proc/{pid}/net/{table}") for table in ("tcp", "tcp6", "udp", "udp6"))
        mounts = _mounts(_text(f"/proc/{pid}/mountinfo"))
        return BoxState(files, _foreign(_processes(pid)), _ports(tables), {}, mounts)
    except OSError as error:
        raise RuntimeFault(f"could not look at the container: {error}") from error


async def _look_inside(sh: Sh, places: list[str]) -> BoxState:
    mark = secrets.token_hex(16)
    answer = await sh(_SCRIPT, [mark, *places])
    parts = answer.text.split(f"{mark}\n")
    if len(parts) != 4 or answer.stdout_dropped:
        raise RuntimeFault(f"the box did not tell its state: {answer.stderr[-500:]!r}")
    commands = [line.strip() for line in parts[0].splitlines() if line.strip()]
    if _SHELL in commands:
        commands.remove(_SHELL)
    files, place = {}, ""
    for line in parts[3].splitlines():
        if line.endswith(":") and line.startswith("/"):
            place = line[:-1]
        elif line:
            files[f"{place} {_lasting(line)}"] = "there"
    return BoxState(files, _foreign(commands), _ports(parts[1]), {}, _mounts(parts[2]))


def _lasting(line: str) -> str:
    """A line of `ls -ln` without what every container has anew: times, and a directory's size and links. Of a regular
    file all counts, since no container begins with one in these places."""
    in_two_words = line[:1] in ("b", "c")
    words = line.split(None, 8 + in_two_words)
    if line.startswith("-") or len(words) != 9 + in_two_words:
        return line
    size = [] if line.startswith("d") else words[4:-4]
    return " ".join([words[0], *words[2:4], *size, words[-1]])


def _processes(pid: int) -> Iterator[str]:
    """Command lines of what runs in the process namespace of `pid`, besides itself."""
    space = os.readlink(f"/proc/{pid}/ns/pid")
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == pid:
            continue
        try:
            if os.readlink(f"/proc/{entry}/ns/pid") != space:
                continue
            words = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        except OSError:
            continue  # It has ended meanwhile.
        if words:
            yield words


def _foreign(commands: Iterable[str]) -> tuple[str, ...]:
    """Without the one child of the box's own shell, which is the shell once more until it has become `sleep`."""
    found = sorted(commands)
    own = next((words for words in found if words in (_SLEEP, _SHELL)), None)
    if own is not None:
        found.remove(own)
    return tuple(found)


def _ports(tables: str) -> tuple[str, ...]:
    """Where something listens, from the kernel's tables: address and port in its own hexadecimal."""
    found = set()
    for line in tables.splitlines():
        words = line.split()
        if len(words) < 4 or not words[0].rstrip(":").isdigit():
            continue
        bound_udp = words[3] == "07" and words[2].endswith(":0000")
        if words[3] == _LISTEN or bound_udp:
            address, _, port = words[1].rpartition(":")
            if address == _RESOLVER:
                continue
            found.add(f"{'udp' if bound_udp else 'tcp'} {address} {int(port, 16)}")
    return tuple(sorted(found))


def _mounts(info: str) -> tuple[str, ...]:
    """Mount points and their kinds; sources carry numbers that differ from container to container."""
    found = []
    for line in info.splitlines():
        before, _, after = line.partition(" - ")
        found.append(f"{before.split()[4]} {after.split()[0]}")
    return tuple(sorted(found))


def _tree(root: str, place: str) -> Iterator[tuple[str, str]]:
    """Every path below `place`, with a word that changes when the path does. Links are told, never followed."""
    top = os.lstat(root + place)
    yield place, f"{stat.filemode(top.st_mode)} {top.st_uid}:{top.st_gid}"
    for directory, inner, names in os.walk(root + place):
        for name in (*inner, *names):
            path = os.path.join(directory, name)
            found = os.lstat(path)
            word = f"{stat.filemode(found.st_mode)} {found.st_uid}:{found.st_gid}"
            if not stat.S_ISCHR(found.st_mode) and not stat.S_ISDIR(found.st_mode):
                word += f" {found.st_size} {found.st_mtime_ns if stat.S_ISREG(found.st_mode) else ''}"
            yield path[len(root) :], word


def _digest(path: str) -> str:
    """Of a file's lines, but for the one with the container's own address and name."""
    lines = [line for line in _text(path).splitlines() if "box" not in line.split()[1:]]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _text(path: str) -> str:
    try:
        return Path(path).read_bytes().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
