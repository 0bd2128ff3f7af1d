"""A filter of system calls for boxes: a short list of refusals in the kernel's own BPF, made here without a compiler.

Refused with EPERM: what mounts, makes or enters namespaces, loads kernel code, traces other processes, reads keys or
performance counters, or changes the machine's clock, swap or power. `clone3` answers ENOSYS, so that libraries take
`clone`, whose flags a filter can read. Code of another architecture is refused whole. Everything else is allowed: the
namespaces and the missing capabilities are the wall, this makes the kernel's surface behind it smaller.
"""

from __future__ import annotations

import functools
import platform
import struct
from collections.abc import Iterator, Mapping

_LOAD, _JUMP_EQUAL, _JUMP_SET, _JUMP_GE, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_X32 = 0x40000000
NAMESPACES = 0x7E020080
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET and NEWTIME."""

_ARCHITECTURES: Mapping[str, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X86_64 = {
    "ptrace": 101, "syslog": 103, "personality": 135, "pivot_root": 155, "chroot": 161, "acct": 163,
    "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170,
    "setdomainname": 171, "iopl": 172, "ioperm": 173, "init_module": 175, "delete_module": 176, "quotactl": 179,
    "clock_settime": 227, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272,
    "perf_event_open": 298, "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311,
    "finit_module": 313, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323, "clone": 56,
}  # fmt: skip
_AARCH64 = {
    "ptrace": 117, "syslog": 116, "personality": 92, "pivot_root": 41, "chroot": 51, "acct": 89, "settimeofday": 170,
    "mount": 40, "umount2": 39, "swapon": 224, "swapoff": 225, "reboot": 142, "sethostname": 161,
    "setdomainname": 162, "init_module": 105, "delete_module": 106, "quotactl": 60, "clock_settime": 112,
    "kexec_load": 104, "add_key": 217, "request_key": 218, "keyctl": 219, "unshare": 97, "perf_event_open": 241,
    "open_by_handle_at": 265, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "finit_module": 273,
    "kexec_file_load": 294, "bpf": 280, "userfaultfd": 282, "clone": 220,
}  # fmt: skip
_EVERYWHERE = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442, "clone3": 435,
}  # fmt: skip
_TABLES: Mapping[str, Mapping[str, int]] = {"x86_64": _X86_64, "aarch64": _AARCH64}


@functools.cache
def filter_code(machine: str | None = None) -> bytes:
    """The filter for this machine, 8 bytes per instruction; empty for one whose call numbers are not known here."""
    machine = machine or platform.machine()
    if machine not in _TABLES:
        return b""
    return b"".join(_instructions(machine, {**_TABLES[machine], **_EVERYWHERE}))


def _instructions(machine: str, numbers: Mapping[str, int]) -> Iterator[bytes]:
    yield _step(_LOAD, _ARCH)
    yield _step(_JUMP_EQUAL, _ARCHITECTURES[machine], 1, 0)
    yield _refuse(_EPERM)
    yield _step(_LOAD, _NUMBER)
    if machine == "x86_64":  # The third set of numbers of this processor, which nobody uses.
        yield _step(_JUMP_GE, _X32, 0, 1)
        yield _refuse(_ENOSYS)
    yield _step(_JUMP_EQUAL, numbers["clone3"], 0, 1)
    yield _refuse(_ENOSYS)
    for name, number in numbers.items():
        if name not in ("clone", "clone3"):
            yield _step(_JUMP_EQUAL, number, 0, 1)
            yield _refuse(_EPERM)
    yield _step(_JUMP_EQUAL, numbers["clone"], 0, 3)
    yield _step(_LOAD, _FIRST_ARGUMENT)
    yield _step(_JUMP_SET, NAMESPACES & 0xFFFFFFFF, 0, 1)
    yield _refuse(_EPERM)
    yield _step(_RETURN, _ALLOW)


def _refuse(number: int) -> bytes:
    return _step(_RETURN, _ERRNO | number)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
