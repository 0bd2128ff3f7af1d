"""How a box comes to be: by the runner, or by bwrap where the kernel refuses it to us. And how it goes.

`then` hears once how it went. Whatever was begun is ended by `close`, at any time.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from .blueprint import Blueprint, blueprint
from .entry import start_keeper
from .errands import Told, bury, enter
from .furnish import DONE
from .loop import Loop, hear

_CHILD = re.compile(rb'"child-pid": *([0-9]+)')
_REMOVE_S = 2.0


class Made:
    """A box that is there, or why it is not."""

    def __init__(
        self, pid: int = 0, fds: Sequence[int] = (), groups: Sequence[bool] | None = None, error: str = ""
    ) -> None:
        self.pid = pid
        """Its first process."""
        self.fds = fds
        """What its plan makes for the owner, who closes them."""
        self.groups = groups
        """Which of its control groups were made; None where that was nobody's task."""
        self.error = error


class Opening:
    def __init__(self, loop: Loop, plans: Blueprint, groups: Sequence[str], then: Callable[[Made], None]) -> None:
        self._loop = loop
        self._plans = plans
        self._groups = groups
        self._then = then
        self._session = 0
        self._keeper = 0
        self._link: socket.socket | None = None
        self._pipes: list[int] = []
        self._pid = 0
        self._handle = -1

    def begin(self) -> None:
        if self._plans.direct:
            with suppress(OSError):  # The kernel may still let bwrap do it.
                self._begin_directly()
                return
        self._begin_otherwise()

    def end_all(self, then: Callable[[Told], None]) -> None:
        """Have everything in the box killed but its first process; `then` hears whether all are gone."""
        link = self._link
        if link is None:
            enter(self._loop, (self._pid, self._handle), self._plans.ending, then)
            return

        def on_told() -> None:
            self._loop.forget(link.fileno())
            heard = hear(link)
            then(Told(error="the box died") if heard is None else Told(heard.word, heard.fds))

        try:
            link.send(b"end", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError as error:
            then(Told(error=str(error)))
        else:
            self._loop.watch(link.fileno(), on_told)

    def close(self) -> None:
        """End our own children: the first process itself, or the part of bwrap that stayed outside, and who made it."""
        if self._keeper:
            os.kill(self._keeper, signal.SIGKILL)
            os.waitpid(self._keeper, 0)
            self._keeper = 0
        if self._session:
            bury(self._session)
            self._session = 0
        if self._handle >= 0:
            self._loop.forget(self._handle)
            os.close(self._handle)
            self._handle = -1
        for fd in self._pipes:
            self._loop.forget(fd)
            os.close(fd)
        self._pipes = []
        if self._link is not None:
            self._loop.forget(self._link.fileno())
            self._link.close()
            self._link = None

    def _begin_directly(self) -> None:
        texts = [os.fsencode(group) for group in self._groups]
        self._session, link = self._plans.making.begin(texts=texts)
        self._link = link

        def on_told() -> None:
            self._loop.forget(link.fileno())
            told = hear(link)
            if told is None or not told.word.startswith(DONE):
                self._begin_otherwise()
                return
            # The socket stays open for the box to live.
            os.waitpid(self._session, 0)
            self._session, self._keeper = 0, told.pid
            made = [number > 0 for number in struct.unpack_from(f"={len(self._groups)}q", told.word, 8)]
            self._then(Made(told.pid, told.fds, made))

        self._loop.watch(link.fileno(), on_told)

    def _begin_otherwise(self) -> None:
        """The kernel refused a part of it. What was written down of this order may be out of date, too."""
        blueprint.cache_clear()
        self.close()
        remove_groups(self._groups)
        try:
            self._begin_with_bwrap()
        except OSError as error:
            self._then(Made(error=str(error)))

    def _begin_with_bwrap(self) -> None:
        order = self._plans.order
        code = os.memfd_create("filter")
        os.write(code, self._plans.seccomp)
        os.lseek(code, 0, os.SEEK_SET)
        talk, echo = os.pipe()
        ready, word = os.pipe()
        info, told = os.pipe()
        errors = os.memfd_create("errors")
        os.write(echo, b"\n")
        self._keeper = start_keeper(order["argv"], order["env"], (talk, word, errors, told, code))
        for fd in (talk, word, told, code):
            os.close(fd)
        self._pipes = [echo, ready, info, errors]
        self._loop.watch(info, self._on_info)
        self._loop.watch(ready, self._on_ready)

    def _on_info(self) -> None:
        """bwrap told which process will be the first of the box. It may still die before the box is ready; bwrap, which
        does not look after it, would not tell."""
        _, _, info, _ = self._pipes
        self._loop.forget(info)
        # The object is written piece by piece; the first piece has the number, whole.
        found = _CHILD.search(os.read(info, 4096))
        if found is None:
            return  # bwrap is dead, which the other pipe tells as well.
        self._pid = int(found[1])
        try:
            self._handle = os.pidfd_open(self._pid)
        except ProcessLookupError:
            self._fail()
        else:
            self._loop.watch(self._handle, self._fail)

    def _on_ready(self) -> None:
        _, ready, info, _ = self._pipes
        if self._loop.watches(info):
            self._on_info()
        if not self._loop.watches(ready):
            return  # It failed.
        self._loop.forget(ready)
        if not os.read(ready, 1) or self._handle < 0:
            self._fail()
            return
        self._loop.forget(self._handle)
        enter(
            self._loop,
            (self._pid, self._handle),
            self._plans.settling,
            lambda told: self._then(Made(self._pid, told.fds, error=told.error)),
        )

    def _fail(self) -> None:
        """The box could not be made; what bwrap said of it is the answer."""
        *_, errors = self._pipes
        words = os.pread(errors, 4096, 0).decode("utf-8", "replace").strip()
        self.close()
        self._then(Made(error=words or "bwrap gave no reason"))


def remove_groups(groups: Sequence[str]) -> None:
    """A control group goes when the last process of it is reaped, which may be a moment after its death."""
    deadline = time.monotonic() + _REMOVE_S
    for group in groups:
        while True:
            try:
                os.rmdir(group)
            except FileNotFoundError:
                break
            except OSError:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.001)
            else:
                break
