"""What a box is made of: which directories of the host it shows, where programs may write, and the words for bwrap.

The root is an empty file system that only shows what is listed here, all of it read-only: an allow-list, like the
environment. Homes, /run, /var, /srv, /mnt and whatever else the host has are not there.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from rollwright.runtimes.local import landlock
from rollwright.runtimes.provision import cache_dir
from rollwright.wire import UsageError

from .cgroups import Recipe
from .config import SandboxConfig
from .seccomp import filter_code

WORKSPACE, HOME, TMP, TMPDIR = "/workspace", "/home/box", "/tmp", "/tmp/box"
PLACES = {WORKSPACE: "755", HOME: "755", TMP: "1777", "/dev/shm": "1777"}
"""Where programs may write, with the mode of each."""
WRITABLE = (*PLACES, "/dev")
"""What landlock lets programs write: the places, terminals and other devices."""
USER = 1000
"""User and group of programs in the box. Outside of it they are the owner's own, without any privilege."""

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu")
_SECRET = (
    *("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers", "/etc/sudoers.d", "/etc/ssh"),
    *("/etc/ssl/private", "/etc/docker", "/etc/kubernetes", "/etc/NetworkManager", "/etc/krb5.keytab"),
)
"""Covered with nothing. An ordinary user could not read these anyway; a box that root makes could."""
_LOWER = "/run/template"
_LAYERS = "/run/layers"
_DIRECTORIES = ("/var", _LAYERS, WORKSPACE, HOME, TMP)
_HOSTNAME = "box"
_HOLD = ("cat",)
"""The first process: it gives back the byte that asks whether the box is ready, and ends with its standard input."""
DIRECT = True
"""Whether the warden first tries to make a box without bwrap."""


@functools.cache
def _bwrap() -> str:
    path = shutil.which("bwrap")
    if path is None:
        raise UsageError("the sandbox runtime needs bubblewrap; install it with: apt-get install bubblewrap")
    return path


def bwrap_words(config: SandboxConfig, *, filtered: bool) -> list[str]:
    """The command line that makes the box; descriptor 3 tells its pid, 4 holds the filter of system calls."""
    return [*_words(config, shown(config), _bwrap()), *(["--seccomp", "4"] if filtered else []), "--", *_HOLD]


def _words(config: SandboxConfig, visible: tuple[str, ...], bwrap: str) -> list[str]:
    words = [bwrap, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    words += ["--uid", str(USER), "--gid", str(USER), "--hostname", _HOSTNAME, "--die-with-parent", "--as-pid-1"]
    words += ["--unshare-net"] if config.network == "none" else []
    words += ["--proc", "/proc", "--dev", "/dev"]
    for directory in _DIRECTORIES:
        words += ["--dir", directory]
    for target, path in _links(visible):
        words += ["--symlink", target, path]
    for source, path in _binds(config, visible):
        words += ["--ro-bind", source, path]
    return [*words, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/", "--info-fd", "3"]


def _root(config: SandboxConfig, visible: tuple[str, ...]) -> dict[str, Any]:
    """The root for the warden, which makes the box itself where the kernel lets it."""
    return {
        "directories": _DIRECTORIES,
        "links": list(_links(visible)),
        "binds": list(_binds(config, visible)),
        "hostname": _HOSTNAME,
        "user": USER,
    }


def order(config: SandboxConfig, groups: Recipe) -> bytes:
    """All that the warden is told of a box. Boxes of the same config have the same order, to the byte."""
    return _order(config, groups, shown(config), DIRECT)


@functools.lru_cache(maxsize=64)
def _order(config: SandboxConfig, groups: Recipe, visible: tuple[str, ...], direct: bool) -> bytes:
    code = filter_code()
    parts = {
        "argv": bwrap_words(config, filtered=bool(code)),
        "env": {"PATH": os.defpath},
        "seccomp": code.hex(),
        "root": {"direct": direct, **_root(config, visible)},
        "plan": _furnishing(config, visible),
        "groups": [{"settings": part.settings, "optional": part.optional} for part in groups.parts],
    }
    return msgspec.json.encode(parts)


def _furnishing(config: SandboxConfig, visible: tuple[str, ...]) -> dict[str, Any]:
    """What the warden mounts where, at the start and at every reset."""
    lower = _LOWER if config.workspace_from else ""
    return {
        "places": [
            {"path": path, "mode": mode, "lower": lower if path == WORKSPACE else ""} for path, mode in PLACES.items()
        ],
        "size_mb": config.disk_mb,
        "inodes": config.disk_files,
        "counts": counts_of(config),
        "tables": ipc_tables(),
        "queues": watches_queues(),
        "writable": WRITABLE if landlock.available() else (),
        "carried": [path for path in visible if _below(path, PLACES)],
        "directories": [TMPDIR],
        "hidden": _hidden(),
        # The host's network is where the warden is already, and is not the box's to enter.
        "spaces": ["mnt", "net"] if config.network == "none" else ["mnt"],
    }


def counts_of(config: SandboxConfig) -> tuple[str, ...]:
    """Where the kernel counts the sockets of a box that has its own network, if it does."""
    own = config.network == "none" and os.path.exists("/proc/self/net/sockstat")
    return ("/proc/1/net/sockstat",) if own else ()


@functools.cache
def ipc_tables() -> tuple[str, ...]:
    """Where the kernel tells of the System V objects of whoever opens the file."""
    return tuple(path for path in (f"/proc/sysvipc/{kind}" for kind in ("shm", "sem", "msg")) if os.path.exists(path))


@functools.cache
def watches_queues() -> bool:
    """Whether programs can make message queues of POSIX: the kernel may have none, and landlock lets nobody make one,
    since no place that may be written holds it."""
    return os.path.isdir("/proc/sys/fs/mqueue") and not landlock.available()


def shown(config: SandboxConfig) -> tuple[str, ...]:
    """Directories of the host that the box shows besides the system's, none inside another."""
    return _shown(config, os.fspath(cache_dir()))


@functools.lru_cache(maxsize=64)
def _shown(config: SandboxConfig, cache: str) -> tuple[str, ...]:
    # The interpreters of scripts are made there later, and lead to the interpreter of this process.
    os.makedirs(cache, mode=0o700, exist_ok=True)
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    own = [cache, sys.base_prefix, package]
    candidates = [os.path.abspath(path) for path in own if os.path.isdir(path)]
    for path in config.visible:
        if not os.path.isdir(path):
            raise UsageError(f"runtime.visible names {path!r}, which is no directory here")
        candidates.append(os.path.normpath(path))
    kept: list[str] = []
    for path in sorted(set(candidates)):
        if not _below(path, (*kept, *_SYSTEM)) and _may_be_shown(path, path in config.visible):
            kept.append(path)
    return tuple(kept)


def is_shown(config: SandboxConfig, path: str) -> bool:
    return _below(path, (*shown(config), *_SYSTEM))


@functools.cache
def _hidden() -> tuple[str, ...]:
    return tuple(path for path in _SECRET if os.path.exists(path))


def _may_be_shown(path: str, asked: bool) -> bool:
    """Not where it would cover a place of the box itself."""
    covered = [place for place in (*PLACES, "/proc", "/dev", _LAYERS) if _below(place, (path,))]
    if covered and asked:
        raise UsageError(f"runtime.visible names {path!r}, which covers {covered[0]} of the box; name what lies in it")
    return not covered


def _links(visible: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Symbolic links of the root: where each leads, and where it lies."""
    for path in _SYSTEM:
        if os.path.islink(path):
            yield os.readlink(path), path
    if not any(_below(path, ("/var/tmp",)) for path in visible):
        yield TMP, "/var/tmp"


def _binds(config: SandboxConfig, visible: Iterable[str]) -> Iterator[tuple[str, str]]:
    """What the root shows of the host, read-only: a path of the host, and where it is shown."""
    for path in _SYSTEM:
        if not os.path.islink(path) and os.path.isdir(path):
            yield path, path
    names = os.path.realpath("/etc/resolv.conf")
    if config.network == "full" and os.path.isfile(names) and not _below(names, _SYSTEM):
        yield names, names
    if config.workspace_from:
        yield config.workspace_from, _LOWER
    for path in visible:
        yield path, path


def _below(path: str, tops: Iterable[str]) -> bool:
    return any(path == top or path.startswith(top.rstrip("/") + "/") for top in tops)
