"""All boxes of one owner: a box for every order that arrives, until the owner closes the control channel or dies."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable

from .box import Box
from .loop import Loop, read_all, receive_bytes

_LAST_S = 20
"""How long the end of all boxes may take after the owner's; what is left then dies with this process."""


def serve(control: socket.socket) -> None:
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


def _made(loop: Loop, message: tuple[bytes, list[int]], on_end: Callable[[Box], None]) -> Box:
    """A box for the channel that arrived, of the order that came with it or lies in the file that did."""
    words, (channel, *files) = message
    groups, _, data = words.partition(b"\n")
    for fd in files:
        data = read_all(fd)
        os.close(fd)
    return Box(loop, socket.socket(fileno=channel), on_end, json.loads(groups), data)
