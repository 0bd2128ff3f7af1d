"""The system calls that Python 3.11 does not offer, with their errors raised. It decides nothing."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_PARENT = 0x00008000
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
_MS_BIND, _MS_REC, _MS_SLAVE = 4096, 16384, 1 << 19
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV = 1, 2, 4
MNT_DETACH = 2

_SIGCHLD = 17
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine(), -1)
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}.get(platform.machine(), -1)
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD, _AT_RECURSIVE, _AT_EMPTY_PATH = -100, 0x8000, 0x1000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 4
_NS_GET_USERNS = 0xB701
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 1, 24, 38, 22
_SIGKILL = 9
_SECCOMP_MODE_FILTER = 2

_libc = ctypes.CDLL(None, use_errno=True)


def setns(fd: int, kinds: int) -> None:
    """Enter namespaces: those of a process where `fd` is its handle, one where it is a namespace's own."""
    _checked(_libc.setns(fd, kinds), "setns")


def unshare(kinds: int) -> None:
    """Make new namespaces and enter them."""
    _checked(_libc.unshare(kinds), "unshare")


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


def keep_mounts_private() -> None:
    """What is mounted from now on is seen in this namespace alone."""
    _checked(_libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None), "make mounts private")


def restrict(path: str, attributes: int) -> None:
    """Add attributes to the one mount at `path`."""
    _set_attributes(_AT_FDCWD, path.encode(), 0, attributes)


def restrict_tree(tree: int, attributes: int) -> None:
    """Add attributes to every mount of a tree that was picked up."""
    _set_attributes(tree, b"", _AT_EMPTY_PATH | _AT_RECURSIVE, attributes)


def _set_attributes(fd: int, path: bytes, flags: int, attributes: int) -> None:
    wanted = struct.pack("=QQQQ", attributes, 0, 0, 0)
    _checked(_libc.syscall(_SYS_MOUNT_SETATTR, fd, path, flags, wanted, len(wanted)), "mount_setattr")


def change_root() -> None:
    """Make the working directory, which is a mount, the root, and let go of what was the root."""
    _checked(_libc.syscall(_SYS_PIVOT_ROOT, b".", b"."), "pivot_root")
    _checked(_libc.umount2(b".", MNT_DETACH), "unmount the old root")


def die_with_parent() -> None:
    """Be killed when the parent ends. A change of privileges takes this back, so it comes after the last."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0), "pdeathsig")


def fork_as_sibling() -> int:
    """A fork whose parent is this process's parent. Only for a process with one thread that is about to end."""
    return _checked(_libc.syscall(_SYS_CLONE, CLONE_PARENT | _SIGCHLD, 0, 0, 0, 0), "clone")


def fork_into(kinds: int) -> int:
    """A fork that is born in new namespaces. Only for a process with one thread."""
    return _checked(_libc.syscall(_SYS_CLONE, kinds | _SIGCHLD, 0, 0, 0, 0), "clone")


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
