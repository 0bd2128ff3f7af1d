"""The filter of system calls, run by a small interpreter of its code: refused calls are refused, all others allowed."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.runtimes.sandbox import seccomp

ALLOW, EPERM, ENOSYS = 0x7FFF0000, 0x00050001, 0x00050026
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def verdict(code, number, arch, first=0):
    """What the kernel would answer to a call."""
    data = struct.pack("=IIQQ", number, arch, 0, first)
    at, register = 0, 0
    for _ in range(1000):
        op, if_true, if_false, value = struct.unpack_from("=HBBI", code, 8 * at)
        at += 1
        if op == 0x20:
            register = struct.unpack_from("=I", data, value)[0]
        elif op == 0x06:
            return value
        else:
            holds = {0x15: register == value, 0x35: register >= value, 0x45: bool(register & value)}[op]
            at += if_true if holds else if_false
    raise AssertionError("the filter does not end")


@pytest.mark.parametrize("machine", ARCH)
@given(number=st.integers(0, 500), first=st.integers(0, 2**32 - 1))
def test_what_is_on_the_list_is_refused_and_nothing_else(machine, number, first):
    numbers = {**seccomp._TABLES[machine], **seccomp._EVERYWHERE}
    names = {value: name for name, value in numbers.items()}
    name = names.get(number, "")
    answer = verdict(seccomp.filter_code(machine), number, ARCH[machine], first)
    if name == "clone3":
        assert answer == ENOSYS
    elif name == "clone":
        assert answer == (EPERM if first & seccomp.NAMESPACES else ALLOW)
    else:
        assert answer == (EPERM if name else ALLOW)


@pytest.mark.parametrize("machine", ARCH)
def test_other_architectures_are_refused_whole(machine):
    code = seccomp.filter_code(machine)
    assert verdict(code, 1, 0x40000003) == EPERM
    if machine == "x86_64":
        assert verdict(code, 0x40000000 | 1, ARCH[machine]) == ENOSYS


def test_threads_and_forks_are_no_namespaces():
    thread, fork = 0x3D0F00, 17
    for flags in (thread, fork, 0x4111):
        assert verdict(seccomp.filter_code("x86_64"), 56, ARCH["x86_64"], flags) == ALLOW
    assert seccomp.filter_code("riscv64") == b""
