"""The system calls that Python 3.11 does not offer, with their errors raised. It decides nothing."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_PARENT = 0x00008000
MS_NOSUID, MS_NODEV = 2, 4
_MS_BIND = 4096
MNT_DETACH = 2

_SIGCHLD = 17
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine(), -1)
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT = 428, 429
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 4
_NS_GET_USERNS = 0xB701
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 24, 38, 22
_SECCOMP_MODE_FILTER = 2

_libc = ctypes.CDLL(None, use_errno=True)


def setns(fd: int, kinds: int) -> None:
    """Enter namespaces: those of a process where `fd` is its handle, one where it is a namespace's own."""
    _checked(_libc.setns(fd, kinds), "setns")


def owner_of(namespace: int) -> int:
    """The user namespace that a namespace belongs to, where whoever enters it may mount and bind."""
    return fcntl.ioctl(namespace, _NS_GET_USERNS)


def mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    words = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _checked(_libc.mount(*words), f"mount {kind} on {target}")


def bind(source: str, target: str) -> None:
    """Show `source` at `target`, as read-only and harmless as the mount it comes from."""
    _checked(_libc.mount(source.encode(), target.encode(), None, ctypes.c_ulong(_MS_BIND), None), f"bind on {target}")


def unmount(target: str) -> bool:
    """Take away what is mounted there, with all below it; False where nothing is."""
    if _libc.umount2(target.encode(), MNT_DETACH) == 0:
        return True
    if ctypes.get_errno() == 22:  # EINVAL: not a mount point.
        return False
    _checked(-1, f"unmount {target}")
    return False


def pick_up(path: str) -> int:
    """A copy of the mount at `path`, with all below it, that is attached nowhere."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE
    return _checked(_libc.syscall(_SYS_OPEN_TREE, _AT_FDCWD, path.encode(), flags), f"pick up {path}")


def put_down(tree: int, path: str) -> None:
    words = (_SYS_MOVE_MOUNT, tree, b"", _AT_FDCWD, path.encode(), _MOVE_MOUNT_F_EMPTY_PATH)
    _checked(_libc.syscall(*words), f"attach a mount to {path}")


def fork_as_sibling() -> int:
    """A fork whose parent is this process's parent. Only for a process with one thread that is about to end."""
    return _checked(_libc.syscall(_SYS_CLONE, CLONE_PARENT | _SIGCHLD, 0, 0, 0, 0), "clone")


def drop_privileges(seccomp: bytes) -> None:
    """No capability can be had again, no program raises privileges, and `seccomp` (BPF code) guards every call."""
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # The first number that the kernel does not know.
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if seccomp:
        _filter_calls(seccomp)


class _Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def _filter_calls(code: bytes) -> None:
    program = _Program(len(code) // 8, code)
    _checked(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0), "seccomp")


def _checked(answer: int, what: str) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return answer
