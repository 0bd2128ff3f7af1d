# mypy: ignore-errors
# Runs under the interpreter of a script, which may be older than ours: plain Python 3.10, unannotated.
"""A worker that has loaded a script and calls its `main(argv) -> str` again and again, in one process.

For functions that keep nothing from one call to the next; whoever asks for this has said so. The answer is what the
script's last lines would print: the result of `main` and a newline, after whatever it printed itself. Anything else
(an exception, a wrong type, an exit) is handed back, and the host runs the script cold to learn its answer.
"""

import array
import io
import json
import os
import socket
import struct
import sys

_HEAD = struct.Struct("!cQ")
_LENGTH = struct.Struct("!I")
_PACKET = 65536


def serve(channel, script):
    """Answer until the channel is closed."""
    try:
        function = script.module().main
    except BaseException as error:
        function = _failing(error)
    own = Environment()
    read = json.JSONDecoder().scan_once
    while True:
        packet, extra, _, _ = channel.recvmsg(_PACKET, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
        if not packet:
            return
        _, call = _HEAD.unpack_from(packet)
        told, _ = read((_whole(extra) if extra else packet[_HEAD.size :]).decode(), 0)
        answer = _answer(function, script.path, told, own)
        channel.send(_HEAD.pack(answer[0], call) + answer[1])


def _whole(extra):
    """The description of a call that was too long for a packet."""
    fds = array.array("i")
    fds.frombytes(extra[0][2][: fds.itemsize])
    with open(fds[0], "rb") as file:
        return file.read()


def _answer(function, path, told, own):
    heard = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="\n"), io.TextIOWrapper(io.BytesIO(), "utf-8", newline="\n")
    kept = sys.stdin, sys.stdout, sys.stderr
    sys.stdin = io.TextIOWrapper(io.BytesIO(told["stdin"].encode("latin-1")), "utf-8")
    sys.stdout, sys.stderr = heard
    try:
        os.chdir(told["cwd"])
        own.become(told["env"])
        sys.argv = [path, *told["argv"]]
        result = function(told["argv"])
        if not isinstance(result, str):
            return b"F", b"main returned " + type(result).__name__.encode()
        print(result)
        said = [_bytes_of(stream) for stream in heard]
    except BaseException as error:
        return b"F", f"main raised {type(error).__name__}".encode()
    finally:
        sys.stdin, sys.stdout, sys.stderr = kept
        # Outside of all boxes, or the end of that box would be taken for the end of this worker.
        os.chdir("/")
    if len(said[0]) + len(said[1]) > _PACKET - 64:
        return b"F", b"long output"
    return b"A", _LENGTH.pack(len(said[0])) + said[0] + said[1]


def _bytes_of(stream):
    stream.flush()
    return stream.buffer.getvalue()


class Environment:
    """The variables of this process. Only what differs from the last call is set, unless a call set some itself."""

    def __init__(self):
        self.last = dict(os.environ)
        self.left = dict(os.environ._data)

    def become(self, env):
        if os.environ._data != self.left:
            self.last = dict(os.environ)
        for name in self.last.keys() - env.keys():
            del os.environ[name]
        for name, value in env.items():
            if self.last.get(name) != value:
                os.environ[name] = value
        self.last = env
        self.left = os.environ._data.copy()


def _failing(error):
    def main(argv):
        raise error

    return main
