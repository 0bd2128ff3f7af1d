# mypy: ignore-errors
# Runs under the interpreter of a script, which may be older than ours: plain Python 3.10, unannotated.
"""Brings warm calls to a box that can only be talked to through a program's stdin and stdout.

    carrier.py SCRIPT SHA256

Frames come in on stdin and go out on stdout: a length, a line of JSON, raw bytes. The zygote beside it and the children
of that have pipes of their own, so nothing that a script prints can get into a frame. One call is one answer frame.
"""

import array
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys

_SIZE = struct.Struct("!I")
_HEAD = struct.Struct("!cQ")
_NUMBER = struct.Struct("!i")
_MARK = "ROLLWRIGHT_BOX"
_ROOM = 160
_CHUNK = 65536


class Call:
    """One script that runs: what it said so far, and what is still to be fed."""

    def __init__(self, number, stdin, limit, mark):
        self.number = number
        self.rest = stdin
        self.limit = limit
        self.mark = mark
        self.said = {1: bytearray(), 2: bytearray()}
        self.dropped = {1: 0, 2: 0}
        self.open = {}
        self.fault = ""

    def hear(self, which, chunk):
        kept = chunk[: max(self.limit - len(self.said[which]), 0)]
        self.said[which] += kept
        self.dropped[which] += len(chunk) - len(kept)


class Carrier:
    def __init__(self, channel, base):
        self.channel = channel
        self.base = base
        self.calls = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(channel, selectors.EVENT_READ, self.on_zygote)
        self.selector.register(0, selectors.EVENT_READ, self.on_host)
        self.heard = bytearray()
        self.serving = True

    def serve(self):
        while self.serving:
            for key, _ in self.selector.select():
                key.data()

    def on_host(self):
        chunk = os.read(0, _CHUNK)
        self.serving = self.serving and bool(chunk)
        self.heard += chunk
        while len(self.heard) >= _SIZE.size:
            size = _SIZE.unpack_from(self.heard)[0] + _SIZE.size
            if len(self.heard) < size:
                return
            line, _, rest = bytes(self.heard[_SIZE.size : size]).partition(b"\n")
            del self.heard[:size]
            told = json.loads(line)
            if told["kind"] == "run":
                self.run(told, rest)
            else:
                self.kill(told["id"])

    def on_zygote(self):
        packet = self.channel.recv(_CHUNK)
        if not packet:
            self.serving = False
            return
        kind, number = _HEAD.unpack_from(packet)
        body = packet[_HEAD.size :]
        if kind in (b"Y", b"N"):
            say({"kind": "ready" if kind == b"Y" else "refused", "body": body.decode("utf-8", "replace")})
        elif kind == b"F" and number in self.calls:
            self.calls[number].fault = body.decode("utf-8", "replace")
        elif kind == b"E" and number in self.calls:
            self.end(self.calls.pop(number), _NUMBER.unpack(body)[0])

    def run(self, told, stdin):
        mark = f"{self.base}{told['id']}."
        env = {**os.environ, **told["env"], _MARK: mark}
        seat = {"argv": told["argv"], "env": env, "cwd": os.getcwd(), "mark": mark, "limits": {}, "writable": []}
        seat |= {"drop_capabilities": [], "join_pid": 0, "namespaces": [], "cgroups": [], "uid": -1, "gid": -1}
        call = self.calls[told["id"]] = Call(told["id"], stdin, told["limit"], mark)
        body = os.memfd_create("call")
        os.write(body, json.dumps(seat).encode())
        os.lseek(body, 0, os.SEEK_SET)
        theirs = [
            body,
            self.feed(call) if stdin else os.open(os.devnull, os.O_RDWR),
            self.listen(call, 1),
            self.listen(call, 2),
        ]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", theirs))]
        self.channel.sendmsg([_HEAD.pack(b"R", told["id"])], rights)
        for fd in theirs:
            os.close(fd)

    def listen(self, call, which):
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        call.open[which] = ours
        self.selector.register(ours, selectors.EVENT_READ, lambda: self.on_output(call, which))
        return theirs

    def feed(self, call):
        theirs, ours = os.pipe()
        os.set_blocking(ours, False)
        call.open[0] = ours
        self.selector.register(ours, selectors.EVENT_WRITE, lambda: self.on_input(call))
        return theirs

    def on_input(self, call):
        try:
            call.rest = call.rest[os.write(call.open[0], call.rest[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            call.rest = b""
        if not call.rest:
            self.shut(call, 0)

    def on_output(self, call, which):
        """Take one chunk; whether there may be more."""
        try:
            chunk = os.read(call.open[which], _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self.shut(call, which)
            return False
        call.hear(which, chunk)
        return True

    def shut(self, call, which):
        fd = call.open.pop(which)
        self.selector.unregister(fd)
        os.close(fd)

    def kill(self, number):
        if number not in self.calls:
            return
        self.channel.send(_HEAD.pack(b"K", number))
        sweep(self.calls[number].mark)

    def end(self, call, status):
        for which in (1, 2):
            while which in call.open and self.on_output(call, which):
                pass
        for which in list(call.open):
            self.shut(call, which)
        self.channel.send(_HEAD.pack(b"D", call.number))
        told = {"kind": "ended", "id": call.number, "status": status, "fault": call.fault}
        told |= {"out": len(call.said[1]), "dropped": [call.dropped[1], call.dropped[2]]}
        say(told, bytes(call.said[1] + call.said[2]))


def sweep(mark):
    """Kill whatever wears the mark, wherever its session is, until nothing does."""
    word = f"{_MARK}={mark}".encode()
    for _ in range(100):
        found = [int(name) for name in os.listdir("/proc") if name.isdigit() and wears(name, word)]
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if not found:
            return


def wears(pid, word):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return any(part.startswith(word) for part in file.read().split(b"\0"))
    except OSError:
        return False


def say(told, rest=b""):
    line = json.dumps(told).encode() + b"\n"
    frame = memoryview(_SIZE.pack(len(line) + len(rest)) + line + rest)
    while frame:
        frame = frame[os.write(1, frame) :]


def main(words):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    base = os.environ.get(_MARK, "")
    zygote = os.path.join(os.path.dirname(os.path.abspath(__file__)), "zygote.py")
    process = subprocess.Popen(
        [sys.executable, zygote, str(theirs.fileno()), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, _MARK: base.ljust(_ROOM, "-")},
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()
    try:
        Carrier(ours, base).serve()
    finally:
        ours.close()
        process.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
