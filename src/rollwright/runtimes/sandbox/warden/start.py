"""The beginning of the warden: `run(fd)` with the descriptor of the control channel."""

from __future__ import annotations

import gc
import os
import signal
import socket
from importlib import import_module

from .serve import serve

_RESERVED = 10


def run(control: int) -> None:
    """Serve until the owner is gone. A terminal's interrupt is the owner's business, who will end us in good order."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    channel = socket.socket(fileno=os.dup(control))
    os.close(control)
    if os.geteuid() == 0:  # No box is in a group that was given to its owner by the way.
        os.setgroups([])
    # Low numbers stay taken: what bwrap is given is put on them, and must not meet something of ours there.
    while (fd := os.open("/dev/null", os.O_RDONLY)) < _RESERVED:
        pass
    os.close(fd)
    os.set_inheritable(channel.fileno(), False)
    # Objects made so far live as long as the process: the collector need not touch, and so copy, them in a fork.
    import_module("landlock")
    gc.disable()
    gc.freeze()
    serve(channel)
