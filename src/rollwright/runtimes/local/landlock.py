"""The kernel's landlock by system call: a thread, and all it starts from then on, writes only below named places.

Needs nothing but the standard library. A restriction can never be taken back, so it is set on a thread that ends, or in
a child; never on a thread that has other work. Reading, the network, signals, and the mode, owner and times of files
are not restricted. On kernels before 6.2 an existing file elsewhere can still be cut short by truncate(2).
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import stat
import struct
import sys
from collections.abc import Sequence

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH = 1
_NO_NEW_PRIVS = 38
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_ENTRIES = sum(1 << bit for bit in range(4, 14))
"""Removing and making files of every type, and moving them between directories."""

NEEDED = 2
"""The first version lets no file move between directories, not even inside of one allowed place."""


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@functools.cache
def version() -> int:
    """The version of the kernel's interface; 0 where there is none. Asking changes nothing."""
    if sys.platform != "linux":
        return 0
    return max(int(_libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_ASK_VERSION))), 0)


def available() -> bool:
    return version() >= NEEDED


def make_ruleset(writable: Sequence[str]) -> int:
    """A descriptor of the rule "writes only below these"; the caller closes it. Places that do not exist are left out.
    OSError where the kernel refuses."""
    ruleset = _checked(
        _libc().syscall(_CREATE_RULESET, struct.pack("=Q", handled()), ctypes.c_size_t(8), ctypes.c_uint(0))
    )
    try:
        for path in writable:
            _allow(ruleset, path)
    except BaseException:
        os.close(ruleset)
        raise
    return ruleset


def restrict_thread(ruleset: int) -> None:
    """From here to its end, this thread and what it starts keep to `ruleset` and gain no privileges by exec."""
    zero = ctypes.c_ulong(0)
    _checked(_libc().prctl(_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero))
    _checked(_libc().syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0)))


def handled() -> int:
    """The rights to write that this kernel can take away."""
    return _WRITE_FILE | _ENTRIES | (_TRUNCATE if version() >= 3 else 0)


def _allow(ruleset: int, path: str) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        rights = handled()
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _WRITE_FILE | _TRUNCATE
        rule = struct.pack("=Qi", rights, place)
        _checked(_libc().syscall(_ADD_RULE, ctypes.c_int(ruleset), _PATH_BENEATH, rule, ctypes.c_uint(0)))
    finally:
        os.close(place)


def _checked(answer: int) -> int:
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"landlock: {os.strerror(code) if code != errno.E2BIG else 'nested too deep'}")
    return answer
