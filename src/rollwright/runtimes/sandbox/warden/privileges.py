"""What a process of a box gives up before it is one, as steps for the runner."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Mapping, Sequence
from importlib import import_module

from . import kernel
from .steps import SKIP, Answer, Buffer, Steps

_CAPABILITIES_3 = 0x20080522
_OF_THE_LIBRARY = (32, 33)
"""Signals that the C library keeps for itself, and ignores in what it spawns."""
_LANDLOCK_PATH_BENEATH = 1


def handle_signals(steps: Steps, handling: Mapping[int, int]) -> None:
    """`handling` by signal; what the C library ignored is as it was."""
    for number, handler in {**dict.fromkeys(_OF_THE_LIBRARY, signal.SIG_DFL), **handling}.items():
        steps.call("rt_sigaction", number, Buffer(struct.pack("=QQQQ", handler, 0, 0, 0)), 0, 8)


def drop_privileges(steps: Steps, seccomp: bytes) -> None:
    """No capability can be had again, no program raises privileges, and `seccomp` (BPF code) guards every call."""
    for capability in range(64):  # The kernel refuses the numbers that it does not know.
        steps.call("prctl", kernel.PR_CAPBSET_DROP, capability, 0, 0, 0, refused=SKIP)
    header, none = Buffer(struct.pack("=Ii", _CAPABILITIES_3, 0)), Buffer(bytes(24))
    steps.call("capset", header, none)
    steps.call("prctl", kernel.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if seccomp:
        program = Buffer(struct.pack("=H6xQ", len(seccomp) // 8, 0), {8: Buffer(seccomp)})
        steps.call("prctl", kernel.PR_SET_SECCOMP, kernel.SECCOMP_MODE_FILTER, program, 0, 0)


def confine_writes(steps: Steps, places: Sequence[str]) -> None:
    """A second wall behind the read-only mounts, where the kernel has landlock."""
    if not import_module("landlock").available():
        return
    rules = make_rules(steps, places)
    steps.call("prctl", kernel.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    steps.call("landlock_restrict_self", rules, 0)
    steps.call("close", rules)


def make_rules(steps: Steps, places: Sequence[str | Answer]) -> Answer:
    """Landlock's rules "writes only below these", which are directories: paths, or descriptors."""
    rules = steps.call("landlock_create_ruleset", Buffer(struct.pack("=Q", _rights())), 8, 0)
    for place in places:
        allow(steps, rules, place)
    return rules


def allow(steps: Steps, rules: Answer, place: str | Answer) -> None:
    rule = Buffer(struct.pack("=QQ", _rights(), 0))
    if isinstance(place, Answer):
        # An answer is kept in one place only, so that of a copy is put into the rule.
        opened = steps.call("openat", place, ".", os.O_PATH | os.O_CLOEXEC)
    else:
        opened = steps.call("openat", kernel.AT_FDCWD, place, os.O_PATH | os.O_CLOEXEC)
    opened.keep(rule, 8)
    steps.call("landlock_add_rule", rules, _LANDLOCK_PATH_BENEATH, rule, 0)
    steps.call("close", opened)


def _rights() -> int:
    rights: int = import_module("landlock").handled()
    return rights
