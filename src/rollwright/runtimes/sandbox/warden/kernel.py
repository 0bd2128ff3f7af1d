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
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_BIND, MS_REC, MS_SLAVE = 4096, 16384, 1 << 19
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV = 1, 2, 4
MNT_DETACH = 2
AT_FDCWD, AT_RECURSIVE, AT_EMPTY_PATH = -100, 0x8000, 0x1000
OPEN_TREE_CLONE = 1
MOVE_MOUNT_F_EMPTY_PATH = 4
FSOPEN_CLOEXEC = FSMOUNT_CLOEXEC = 1
FSCONFIG_SET_STRING, FSCONFIG_CMD_CREATE = 1, 6
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_TIMERSLACK, PR_SET_NO_NEW_PRIVS = 1, 22, 24, 29, 38
SECCOMP_MODE_FILTER = 2

_SIGCHLD = 17
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine(), -1)
_NS_GET_USERNS = 0xB701

_libc = ctypes.CDLL(None, use_errno=True)


def setns(fd: int, kinds: int) -> None:
    """Enter namespaces: those of a process where `fd` is its handle, one where it is a namespace's own."""
    _checked(_libc.setns(fd, kinds), "setns")


def owner_of(namespace: int) -> int:
    """The user namespace that a namespace belongs to, where whoever enters it may mount and bind."""
    return fcntl.ioctl(namespace, _NS_GET_USERNS)


def fork_as_sibling() -> int:
    """A fork whose parent is this process's parent. Only for a process with one thread that is about to end."""
    return _checked(_libc.syscall(_SYS_CLONE, CLONE_PARENT | _SIGCHLD, 0, 0, 0, 0), "clone")


def drop_privileges(seccomp: bytes) -> None:
    """No capability can be had again, no program raises privileges, and `seccomp` (BPF code) guards every call."""
    for capability in range(64):
        if _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # The first number that the kernel does not know.
    _checked(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if seccomp:
        _filter_calls(seccomp)


class _Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def _filter_calls(code: bytes) -> None:
    program = _Program(len(code) // 8, code)
    _checked(_libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0), "seccomp")


def _checked(answer: int, what: str) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return answer
