"""One box, as the warden sees it: a first process that holds its namespaces, and the programs that were started in it.

The box lives as long as its channel: when the owner closes it, or dies, everything in the box is killed and what was
made for it outside (control groups) is removed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from .blueprint import blueprint
from .clearing import Clearing
from .entry import errand
from .errands import Told
from .furnish import is_exiting
from .ipc import remove_objects
from .loop import Loop, read_all, receive, send
from .opening import Made, Opening, remove_groups
from .programs import Programs

_OPEN = {"id": 1}
"""The first request of every channel. It comes with the channel."""


class Box:
    """`data` is its order, `groups` are the control groups that are made for it. It is made at once."""

    def __init__(
        self, loop: Loop, channel: socket.socket, on_end: Callable[[Box], None], groups: Sequence[str], data: bytes
    ) -> None:
        self._loop = loop
        self._channel = channel
        self._on_end = on_end
        self._groups = groups
        self._ending = False
        self._asked: dict[str, Any] | None = None
        self._pid = 0
        self._handle = -1
        self._plans = blueprint(data)
        self._programs = Programs(loop, self._plans, self._on_exit)
        self._opening = Opening(loop, self._plans, groups, self._on_made)
        loop.watch(channel.fileno(), self._on_message)
        self._opening.begin()

    def end(self, request: dict[str, Any] | None = None) -> None:
        """Kill the box; the rest follows when its first process, and with it every other, is gone."""
        if self._ending:
            return
        self._ending, self._asked = True, request
        if self._handle < 0:
            self._finish()
            return
        self._programs.reap_told()
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def _finish(self) -> None:
        """Nothing of the box runs any more. Its channel is closed, by which an owner who did not ask learns of it."""
        self._ending = True
        if self._handle >= 0:
            self._loop.forget(self._handle)
            os.close(self._handle)
        self._opening.close()
        self._programs.reap_all()
        if self._asked is not None:
            self._answer(self._asked)
        else:
            remove_groups(self._groups)
        self._loop.forget(self._channel.fileno())
        self._channel.close()
        self._on_end(self)

    def _on_made(self, made: Made) -> None:
        if made.error:
            self._answer(_OPEN, error=made.error)
            return
        self._pid = made.pid
        self._handle = os.pidfd_open(made.pid)
        self._loop.watch(self._handle, self._finish)
        self._answer(_OPEN, made.fds, pid=made.pid, groups=made.groups)

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
        """Answer, and let go of descriptors that are now the owner's."""
        send(self._channel, {"id": request["id"], "error": error, **fields}, fds)
        for fd in fds:
            os.close(fd)

    def _do_clear(self, request: dict[str, Any], fds: list[int]) -> None:
        def on_cleared(told: Told) -> None:
            self._answer(request, told.fds, error=told.error)

        Clearing(self._loop, (self._pid, self._handle), self._plans, self._opening, on_cleared).begin()

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

        self._send_errand(request, work, "net")

    def _do_empty_ipc(self, request: dict[str, Any], fds: list[int]) -> None:
        self._send_errand(request, remove_objects, "ipc")

    def _do_socket(self, request: dict[str, Any], fds: list[int]) -> None:
        self._send_errand(request, lambda: [socket.socket().detach()], "net")

    def _send_errand(self, request: dict[str, Any], work: Callable[[], Sequence[int]], space: str) -> None:
        """Do `work` in a namespace of the box."""
        pid, answers = errand(self._pid, work, (space,))

        def on_answer() -> None:
            self._loop.forget(answers.fileno())
            message = receive(answers)
            answers.close()
            os.waitpid(pid, 0)
            reply, fds = message or ({"error": "the errand died"}, [])
            self._answer(request, fds, error=reply["error"])

        self._loop.watch(answers.fileno(), on_answer)

    def _do_spawn(self, request: dict[str, Any], fds: list[int]) -> None:
        order = json.loads(read_all(fds[0]))
        streams = fds[1:4]
        del fds[1:]

        def then(pid: int, error: str) -> None:
            self._answer(request, error=error, pid=pid)

        self._programs.start(request["id"], self._handle, order, streams, then)

    def _on_exit(self, program: int, pid: int, handle: int) -> None:
        if self._ending or is_exiting(self._pid):
            # The box died under it: how it ended means nothing, and the box waits for it to be reaped.
            self.end()
            self._programs.reap(program)
            return
        self._programs.told(handle)
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        send(self._channel, {"ended": program, "status": status})

    def _do_stop(self, request: dict[str, Any], fds: list[int]) -> None:
        self.end(request)

    def _do_reap(self, request: dict[str, Any], fds: list[int]) -> None:
        self._programs.reap(request["program"])
