"""What the warden knows of all boxes of one order: how each is made, settled and cleared, written down once."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from . import program, runner
from .build import work_of
from .furnish import clearing, ending, settling
from .runner import Work

_KINDS = 16
"""Of programs: all of a box have the same limits, as a rule."""


class Blueprint:
    """Work is written down when it is first wanted."""

    def __init__(self, data: bytes) -> None:
        self.order: dict[str, Any] = json.loads(data)
        self.plan: dict[str, Any] = self.order["plan"]
        self.seccomp = bytes.fromhex(self.order["seccomp"])
        self._starting: dict[str, Work] = {}
        self.direct = bool(self.order["root"]["direct"]) and runner.NATIVE
        """Whether a box is first tried to be made without bwrap."""

    @functools.cached_property
    def making(self) -> Work:
        return work_of(self.order, self.seccomp)

    @functools.cached_property
    def settling(self) -> Work:
        return Work(settling(self.plan), forks=True)

    @functools.cached_property
    def clearing(self) -> Work:
        return Work(clearing(self.plan), forks=True)

    @functools.cached_property
    def ending(self) -> Work:
        return Work(ending(), forks=True)

    def starting(self, order: Mapping[str, Any]) -> Work:
        """How a program of this order is started. OSError where it must be done otherwise."""
        told = json.dumps([len(order["cgroups"]), order["own_network"], order["limits"], order["writable"]])
        if told not in self._starting:
            if len(self._starting) >= _KINDS:
                self._starting.clear()
            self._starting[told] = program.work_of(order, self.seccomp)
        return self._starting[told]


@functools.lru_cache(maxsize=16)
def blueprint(data: bytes) -> Blueprint:
    return Blueprint(data)
