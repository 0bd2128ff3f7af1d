"""The programs of one box: started, told of when they end, and reaped when their owner says so."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from .blueprint import Blueprint
from .entry import start_program
from .errands import bury
from .loop import Loop, hear
from .program import BORN, REFUSED, texts
from .runner import BASE

Then = Callable[[int, str], None]
"""Hears the pid of a program that runs, or why it does not."""


class Programs:
    """`on_exit(number, pid, handle)` hears that the program of a request ended."""

    def __init__(self, loop: Loop, plans: Blueprint, on_exit: Callable[[int, int, int], None]) -> None:
        self._loop = loop
        self._plans = plans
        self._on_exit = on_exit
        self._running: dict[int, tuple[int, int]] = {}

    def start(self, number: int, box: int, order: dict[str, Any], streams: Sequence[int], then: Then) -> None:
        """Start the program of request `number` in the box with the handle `box`. The streams are ours to close."""

        def started(pid: int, error: str) -> None:
            for fd in streams:
                os.close(fd)
            if not error:
                handle = os.pidfd_open(pid)
                self._running[number] = pid, handle
                self._loop.watch(handle, lambda: self._on_exit(number, pid, handle))
            then(pid, error)

        try:
            work = self._plans.starting(order)
            session, link = work.begin((box, *streams), texts(order))
        except OSError:  # No runner here, or no room in it for this order.
            self._start_otherwise(box, order, streams, started)
            return
        born = 0

        def on_told() -> None:
            nonlocal born
            told = hear(link)
            if told is not None and told.word == BORN:
                born = told.pid
                return
            self._loop.forget(link.fileno())
            link.close()
            if told is None and born:
                os.waitpid(session, 0)
                started(born, "")
                return
            bury(session)
            if born:
                os.waitpid(born, 0)
            if told is not None and told.word == REFUSED:
                # What the other way says of it is said in the program's own name.
                self._start_otherwise(box, order, streams, started)
            else:
                started(0, str(work.steps.why(told.word, BASE)) if told else "the program did not start")

        self._loop.watch(link.fileno(), on_told)

    def _start_otherwise(self, box: int, order: dict[str, Any], streams: Sequence[int], then: Then) -> None:
        """By two forks of this process."""
        try:
            between, telling = start_program(box, order, streams, self._plans.seccomp)
        except OSError as error:
            then(0, str(error))
            return
        heard = bytearray()

        def on_told() -> None:
            part = os.read(telling, 4096)
            heard.extend(part)
            if part:
                return
            self._loop.forget(telling)
            os.close(telling)
            os.waitpid(between, 0)
            number, _, words = bytes(heard).partition(b"\n")
            error = words if number.isdigit() else bytes(heard) or b"the program did not start"
            if words and number.isdigit():
                os.waitpid(int(number), 0)
            then(int(number) if not error else 0, error.decode("utf-8", "replace").lstrip("!"))

        self._loop.watch(telling, on_told)

    def told(self, handle: int) -> None:
        """The end of this one was told, and is waited for no more. It stays unreaped, so that its id names nothing else
        while the owner holds it."""
        self._loop.forget(handle)

    def reap(self, number: int) -> None:
        pid, handle = self._running.pop(number, (0, -1))
        if pid:
            self._loop.forget(handle)
            os.close(handle)
            os.waitpid(pid, 0)

    def reap_told(self) -> None:
        """Those whose end was told, and nobody will ask for any more."""
        for number, (_, handle) in list(self._running.items()):
            if not self._loop.watches(handle):
                self.reap(number)

    def reap_all(self) -> None:
        for number in list(self._running):
            self.reap(number)
