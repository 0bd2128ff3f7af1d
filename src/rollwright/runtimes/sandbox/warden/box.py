"""One box, as the warden sees it: a first process that holds its namespaces, and the programs that were started in it.

The box lives as long as its channel: when the owner closes it, or dies, everything in the box is killed and what was
made for it outside (control groups) is removed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from .blueprint import blueprint
from .entry import errand, start_keeper, start_program
from .furnish import DONE, LEFT, is_exiting, running
from .kernel import owner_of
from .loop import Loop, hear, read_all, receive, receive_bytes, send
from .runner import BASE, Work

_CHILD = re.compile(rb'"child-pid": *([0-9]+)')
_REMOVE_S = 2.0
_GONE_S = 10.0
_LAST_S = 20
"""How long the end of all boxes may take after the owner's; what is left then dies with this process."""


class Told:
    """What came of an errand of the runner."""

    def __init__(self, word: bytes = b"", fds: Sequence[int] = (), error: str = "") -> None:
        self.word = word
        self.fds = fds
        self.error = error


class Box:
    """`data` is its order, `groups` are the control groups that are made for it. It is made at once, and that is the
    first request of its channel."""

    def __init__(
        self, loop: Loop, channel: socket.socket, on_end: Callable[[Box], None], groups: Sequence[str], data: bytes
    ) -> None:
        self._loop = loop
        self._channel = channel
        self._on_end = on_end
        self._groups = groups
        self._ending = False
        self._asked: dict[str, Any] | None = None
        self._keeper = 0
        self._session = 0
        self._link: socket.socket | None = None
        self._pid = 0
        self._handle = -1
        self._pipes: list[int] = []
        self._programs: dict[int, tuple[int, int]] = {}
        self._blueprint = blueprint(data)
        loop.watch(channel.fileno(), self._on_message)
        self._open({"id": 1})

    def end(self, request: dict[str, Any] | None = None) -> None:
        """Kill the box; the rest follows when its first process, and with it every other, is gone."""
        if self._ending:
            return
        self._ending, self._asked = True, request
        if self._handle < 0:
            self._kill_keeper()
            self._finish()
            return
        for program, (_, handle) in list(self._programs.items()):
            if not self._loop.watches(handle):  # Its end was told and nobody will ask for it any more.
                self._reap(program)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def _finish(self) -> None:
        """Nothing of the box runs any more. Its channel is closed, by which an owner who did not ask learns of it."""
        self._ending = True
        self._close_pipes()
        if self._handle >= 0:
            self._loop.forget(self._handle)
            os.close(self._handle)
            self._kill_keeper()
        for program in list(self._programs):
            self._reap(program)
        if self._asked is not None:
            self._answer(self._asked)
        else:
            _remove_groups(self._groups)
        self._loop.forget(self._channel.fileno())
        self._channel.close()
        self._on_end(self)

    def _close_pipes(self) -> None:
        for fd in self._pipes:
            self._loop.forget(fd)
            os.close(fd)
        self._pipes = []
        if self._link is not None:
            self._loop.forget(self._link.fileno())
            self._link.close()
            self._link = None

    def _kill_keeper(self) -> None:
        """Our own children: the first process itself, or the part of bwrap that stayed outside, and who made it."""
        if self._keeper:
            os.kill(self._keeper, signal.SIGKILL)
            os.waitpid(self._keeper, 0)
            self._keeper = 0
        if self._session:
            _bury(self._session)
            self._session = 0

    def _on_message(self) -> None:
        message = receive(self._channel)
        if message is None:
            self._loop.forget(self._channel.fileno())
            self.end()
            return
        request, fds = message
        try:
            getattr(self, f"_do_{request['op']}")(request, fds)
        except OSError as error:
            self._answer(request, error=str(error))
        finally:
            for fd in fds:
                os.close(fd)

    def _answer(self, request: dict[str, Any], fds: Sequence[int] = (), *, error: str = "", **fields: Any) -> None:
        send(self._channel, {"id": request["id"], "error": error, **fields}, fds)

    def _open(self, request: dict[str, Any]) -> None:
        if self._blueprint.direct:
            with suppress(OSError):  # The kernel may still let bwrap do it.
                self._open_directly(request)
                return
        self._open_otherwise(request)

    def _open_directly(self, request: dict[str, Any]) -> None:
        self._session, link = self._blueprint.making.begin(texts=self._groups)
        self._link = link

        def on_told() -> None:
            told = hear(link)
            self._loop.forget(link.fileno())
            if told is None or not told[0].startswith(DONE):
                self._open_otherwise(request)
                return
            # The socket stays open for the box to live, and is not listened to any more.
            link.shutdown(socket.SHUT_RD)
            self._on_built(request, *told)

        self._loop.watch(link.fileno(), on_told)

    def _open_otherwise(self, request: dict[str, Any]) -> None:
        """The kernel refused a part of it. What was written down of this order may be out of date, too."""
        blueprint.cache_clear()
        self._kill_keeper()
        self._close_pipes()
        _remove_groups(self._groups)
        try:
            self._open_with_bwrap(request)
        except OSError as error:
            self._answer(request, error=str(error))

    def _on_built(self, request: dict[str, Any], word: bytes, fds: list[int], pid: int) -> None:
        self._pid = self._keeper = pid
        os.waitpid(self._session, 0)
        self._session = 0
        self._handle = os.pidfd_open(pid)
        self._loop.watch(self._handle, self._finish)
        made = [number > 0 for number in struct.unpack_from(f"={len(self._groups)}q", word, 8)]
        self._answer(request, fds, pid=pid, groups=made)
        for fd in fds:
            os.close(fd)

    def _open_with_bwrap(self, request: dict[str, Any]) -> None:
        order = self._blueprint.order
        code = os.memfd_create("filter")
        os.write(code, self._blueprint.seccomp)
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
        self._loop.watch(info, lambda: self._on_info(request))
        self._loop.watch(ready, lambda: self._on_ready(request))

    def _on_info(self, request: dict[str, Any]) -> None:
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
            self._fail(request)
        else:
            self._loop.watch(self._handle, lambda: self._fail(request))

    def _on_ready(self, request: dict[str, Any]) -> None:
        _, ready, info, _ = self._pipes
        if self._loop.watches(info):
            self._on_info(request)
        if not self._loop.watches(ready):
            return  # It failed.
        self._loop.forget(ready)
        if not os.read(ready, 1) or self._handle < 0:
            self._fail(request)
            return
        self._loop.forget(self._handle)
        self._loop.watch(self._handle, self._finish)
        self._enter(self._blueprint.settling, lambda told: self._tell(request, told, pid=self._pid, groups=None))

    def _fail(self, request: dict[str, Any]) -> None:
        """The box could not be made; what bwrap said of it is the answer."""
        _, ready, info, errors = self._pipes
        for fd in (ready, info):
            self._loop.forget(fd)
        if self._handle >= 0:
            self._loop.forget(self._handle)
            os.close(self._handle)
            self._handle = -1
        self._kill_keeper()
        words = os.pread(errors, 4096, 0).decode("utf-8", "replace").strip()
        self._answer(request, error=words or "bwrap gave no reason")

    def _do_clear(self, request: dict[str, Any], fds: list[int]) -> None:
        deadline = time.monotonic() + _GONE_S

        def on_told(told: Told) -> None:
            if told.word != LEFT:
                self._tell(request, told)
            elif not (left := running(f"/proc/{self._pid}/root/proc")):
                # Only the remains of programs that their owner has not asked for yet.
                self._enter(self._blueprint.furnishing, lambda told: self._tell(request, told))
            elif time.monotonic() > deadline:
                error = f"{len(left)} processes are still there after {_GONE_S:g} s of killing"
                self._answer(request, error=error)
            else:
                self._enter(self._blueprint.clearing, on_told)

        self._enter(self._blueprint.clearing, on_told)

    def _enter(self, work: Work, then: Callable[[Told], None]) -> None:
        """Have `work` done inside of the box, as the master of its mounts."""
        try:
            with _master_of(self._pid) as master:
                session, link = work.begin((master, self._handle))
        except OSError as error:
            then(Told(error=str(error)))
            return

        def on_told() -> None:
            self._loop.forget(link.fileno())
            told = hear(link)
            link.close()
            _bury(session)
            then(_told(work, told))

        self._loop.watch(link.fileno(), on_told)

    def _tell(self, request: dict[str, Any], told: Told, **fields: Any) -> None:
        self._answer(request, told.fds, error=told.error, **fields)
        for fd in told.fds:
            os.close(fd)

    def _do_listen(self, request: dict[str, Any], fds: list[int]) -> None:
        def work() -> list[int]:
            server = socket.socket()
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                server.bind(("127.0.0.1", request["port"]))
            except OSError:
                server.bind(("127.0.0.1", 0))
            server.listen(128)
            return [server.detach()]

        self._send_errand(request, work, ("net",))

    def _do_socket(self, request: dict[str, Any], fds: list[int]) -> None:
        self._send_errand(request, lambda: [socket.socket().detach()], ("net",))

    def _send_errand(
        self, request: dict[str, Any], work: Callable[[], Sequence[int]], kinds: Sequence[str], **fields: Any
    ) -> None:
        pid, answers = errand(self._pid, work, kinds)

        def on_answer() -> None:
            self._loop.forget(answers.fileno())
            message = receive(answers)
            answers.close()
            os.waitpid(pid, 0)
            reply, fds = message or ({"error": "the errand died"}, [])
            self._answer(request, fds, **fields, **reply)
            for fd in fds:
                os.close(fd)

        self._loop.watch(answers.fileno(), on_answer)

    def _do_spawn(self, request: dict[str, Any], fds: list[int]) -> None:
        order = json.loads(read_all(fds[0]))
        between, telling = start_program(self._handle, order, fds[1:4], self._blueprint.seccomp)
        heard = bytearray()

        def on_told() -> None:
            part = os.read(telling, 4096)
            heard.extend(part)
            if part:
                return
            self._loop.forget(telling)
            os.close(telling)
            os.waitpid(between, 0)
            self._on_started(request, bytes(heard))

        self._loop.watch(telling, on_told)

    def _on_started(self, request: dict[str, Any], heard: bytes) -> None:
        number, _, error = heard.partition(b"\n")
        if not number.isdigit():
            self._answer(request, error=heard.decode("utf-8", "replace").lstrip("!") or "the program did not start")
            return
        pid = int(number)
        if error:
            os.waitpid(pid, 0)
            self._answer(request, error=error.decode("utf-8", "replace").lstrip("!"))
            return
        handle = os.pidfd_open(pid)
        self._programs[request["id"]] = (pid, handle)
        self._answer(request, pid=pid)
        self._loop.watch(handle, lambda: self._on_exit(request["id"], pid, handle))

    def _on_exit(self, program: int, pid: int, handle: int) -> None:
        if self._ending or is_exiting(self._pid):
            # The box died under it: how it ended means nothing, and the box waits for it to be reaped.
            self.end()
            self._reap(program)
            return
        self._tell_exit(program, pid, handle)

    def _tell_exit(self, program: int, pid: int, handle: int) -> None:
        """Tell the end, but leave the process unreaped, so that its id names nothing else while the owner holds it."""
        self._loop.forget(handle)
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        send(self._channel, {"ended": program, "status": status})

    def _do_stop(self, request: dict[str, Any], fds: list[int]) -> None:
        self.end(request)

    def _do_reap(self, request: dict[str, Any], fds: list[int]) -> None:
        self._reap(request["program"])

    def _reap(self, program: int) -> None:
        pid, handle = self._programs.pop(program, (0, -1))
        if pid:
            self._loop.forget(handle)
            os.close(handle)
            os.waitpid(pid, 0)


@contextmanager
def _master_of(pid: int) -> Iterator[int]:
    """The user namespace that the mounts of `pid` belong to."""
    mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        master = owner_of(mounts)
    finally:
        os.close(mounts)
    try:
        yield master
    finally:
        os.close(master)


def _told(work: Work, heard: tuple[bytes, list[int], int] | None) -> Told:
    if heard is None:
        return Told(error="the errand died")
    word, fds, _ = heard
    if word in (DONE, LEFT):
        return Told(word, fds)
    return Told(error=str(work.steps.why(word, BASE)))


def _bury(session: int) -> None:
    """End a runner with the child that it goes on in, and reap both."""
    with suppress(ProcessLookupError):
        os.killpg(session, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-session, 0)


def _remove_groups(groups: Sequence[str]) -> None:
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


def _made(loop: Loop, message: tuple[bytes, list[int]], on_end: Callable[[Box], None]) -> Box:
    """A box for the channel that arrived, of the order that came with it or lies in the file that did."""
    words, (channel, *files) = message
    groups, _, data = words.partition(b"\n")
    for fd in files:
        data = read_all(fd)
        os.close(fd)
    return Box(loop, socket.socket(fileno=channel), on_end, json.loads(groups), data)


def serve(control: socket.socket) -> None:
    """Make a box for every channel that arrives, until the owner closes the control channel or dies; then end all."""
    loop = Loop()
    boxes: set[Box] = set()

    def leave(box: Box) -> None:
        boxes.discard(box)
        loop.ended = not boxes and not loop.watches(control.fileno())

    def on_control() -> None:
        message = receive_bytes(control)
        if message is not None:
            boxes.add(_made(loop, message, leave))
            return
        loop.forget(control.fileno())
        signal.alarm(_LAST_S)
        loop.ended = not boxes
        for box in list(boxes):
            box.end()

    loop.watch(control.fileno(), on_control)
    loop.run()
