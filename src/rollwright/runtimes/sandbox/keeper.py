"""The warden of this process: started with the first box, shared by all, and ended with the process.

It costs 15 ms once. A warden that died is replaced for the next box; the boxes it held died with it.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from rollwright.wire import RuntimeFault

from .channel import in_memory

_BOOT = "import sys; sys.path += sys.argv[2:]; from warden.start import run; run(int(sys.argv[1]))"
_HERE = os.path.dirname(os.path.abspath(__file__))
_PATHS = (_HERE, os.path.join(os.path.dirname(_HERE), "local"))
"""Where the warden finds itself, and the module for landlock, which needs nothing else either."""
_END_S = 10.0
_ORDER_LIMIT = 50_000


class Keeper:
    """Starts the warden and hands channels to it. Methods block for well under a millisecond, save the first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def channel(self, groups: Sequence[str], order: bytes) -> socket.socket:
        """Our end of a channel to a box that is made from now on, as `order` says. The warden removes `groups` with it
        where we no longer can."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        head = msgspec.json.encode(groups) + b"\n"
        try:
            with theirs, _parcel(order) as (words, fds), self._lock:
                socket.send_fds(self._warden(), [head, words], [theirs.fileno(), *fds])
        except OSError as error:
            ours.close()
            raise RuntimeFault(f"the keeper of sandboxes could not be reached: {error}") from error
        return ours

    def close(self) -> None:
        """End the warden with all that it holds."""
        with self._lock:
            if self._control is None or self._process is None or self._owner != os.getpid():
                return
            self._control.close()
            self._control = None
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _warden(self) -> socket.socket:
        # A fork of this process has no right to the channel of its parent.
        if self._owner != os.getpid() or self._process is None or self._process.poll() is not None:
            self._start()
        assert self._control is not None
        return self._control

    def _start(self) -> None:
        if self._control is not None:
            self._control.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOOT, str(theirs.fileno()), *_PATHS],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
            )
        self._control, self._owner = ours, os.getpid()


@contextmanager
def _parcel(order: bytes) -> Iterator[tuple[bytes, list[int]]]:
    """An order as it is sent: in the message, or in a file where it is too long for that."""
    if len(order) <= _ORDER_LIMIT:
        yield order, []
        return
    fd = in_memory(order)
    try:
        yield b"", [fd]
    finally:
        os.close(fd)


keeper = Keeper()
atexit.register(keeper.close)
