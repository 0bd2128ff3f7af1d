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
import time

_SIZE = struct.Struct("!I")
_HEAD = struct.Struct("!cQ")
_NUMBER = struct.Struct("!i")
_MARK = "ROLLWRIGHT_BOX"
_ROOM = 160
_CHUNK = 65536
_WEIGHED_EVERY = 64
# As the host does it: what is written so soon after the end is still heard.
_GRACE_S = 0.1
# As the host does it: the channel must have room for what ends a call.
_INLINE, _FEW = 7000, 16


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
        self.killed = False
        self.status = 0
        self.until = 0.0

    def is_heard(self):
        """Whether anybody may write on."""
        return 1 in self.open or 2 in self.open

    def is_over(self):
        return not self.is_heard() or time.monotonic() >= self.until

    def hear(self, which, chunk):
        kept = chunk[: max(self.limit - len(self.said[which]), 0)]
        self.said[which] += kept
        self.dropped[which] += len(chunk) - len(kept)


class Carrier:
    def __init__(self, channel, base, zygote):
        self.channel = channel
        self.base = base
        self.zygote = zygote
        self.ended = 0
        self.cwd = os.getcwd()
        self.calls = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(channel, selectors.EVENT_READ, self.on_zygote)
        self.selector.register(0, selectors.EVENT_READ, self.on_host)
        self.heard = bytearray()
        self.lingering = []
        """Calls whose script has ended while somebody still holds its output."""
        self.serving = True

    def serve(self):
        while self.serving:
            for key, _ in self.selector.select(self.patience_s()):
                if self.selector.get_map().get(key.fd) is key:  # An event before it may have shut it.
                    key.data()
            for call in [call for call in self.lingering if call.is_over()]:
                self.lingering.remove(call)
                self.tell(call)

    def patience_s(self):
        return max(min(call.until for call in self.lingering) - time.monotonic(), 0) if self.lingering else None

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
            told = {"kind": "ready" if kind == b"Y" else "refused", "body": body.decode("utf-8", "replace")}
            say({**told, "memory_mb": memory_mb(self.zygote)})
        elif kind == b"F" and number in self.calls:
            self.calls[number].fault = body.decode("utf-8", "replace")
        elif kind == b"E" and number in self.calls:
            self.end(self.calls.pop(number), _NUMBER.unpack(body)[0])

    def run(self, told, stdin):
        mark = f"{self.base}{told['id']}."
        env = {**os.environ, **told["env"], _MARK: mark}
        seat = {"argv": told["argv"], "env": env, "cwd": self.cwd, "mark": mark, "limits": {}, "writable": []}
        seat |= {"drop_capabilities": [], "join_pid": 0, "namespaces": [], "cgroups": [], "uid": -1, "gid": -1}
        seat |= {"silent": not stdin, "seccomp": ""}
        call = self.calls[told["id"]] = Call(told["id"], stdin, told["limit"], mark)
        body, theirs = json.dumps(seat).encode(), []
        try:
            if len(body) > _INLINE or len(self.calls) > _FEW:
                theirs.append(as_file(body))
                body = b""
            theirs.append(self.feed(call) if stdin else os.open(os.devnull, os.O_RDWR))
            theirs += [self.listen(call, 1), self.listen(call, 2)]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", theirs))]
            self.channel.sendmsg([_HEAD.pack(b"R", told["id"]), body], rights)
        except OSError as error:
            # Nothing was asked of the zygote, so the script has not begun.
            call.fault = f"{type(error).__name__}: {error}"
            self.end(self.calls.pop(told["id"]), 0)
        finally:
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
        if number in self.calls:
            self.calls[number].killed = True
            sweep(self.calls[number].mark)  # First, while it is still seen who descends from whom.
            self.channel.send(_HEAD.pack(b"K", number))

    def end(self, call, status):
        if call.killed:
            sweep(call.mark)
        call.status = status
        for which in (1, 2):
            while which in call.open and self.on_output(call, which):
                pass
        if call.killed or call.fault or not call.is_heard():
            self.tell(call)
        else:
            call.until = time.monotonic() + _GRACE_S
            self.lingering.append(call)

    def tell(self, call):
        for which in list(call.open):
            self.shut(call, which)
        told = {"kind": "ended", "id": call.number, "status": call.status, "fault": call.fault}
        told |= {"out": len(call.said[1]), "dropped": [call.dropped[1], call.dropped[2]]}
        self.ended += 1
        if self.ended % _WEIGHED_EVERY == 0:
            told["memory_mb"] = memory_mb(self.zygote)
        say(told, bytes(call.said[1] + call.said[2]))
        self.channel.send(_HEAD.pack(b"D", call.number))


def memory_mb(pid):
    """What a process holds; 0 where the kernel does not tell."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    except (OSError, IndexError, ValueError):
        return 0


def as_file(body):
    """A description of a call that is too long for a packet."""
    fd = os.memfd_create("call")
    with open(fd, "wb", closefd=False) as file:
        file.write(body)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def sweep(mark):
    """Kill whatever wears the mark or descends from what does, wherever its session is, until nothing is found."""
    word = f"{_MARK}={mark}".encode()
    for _ in range(100):
        found = hunted(word)
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        if not found:
            return


def hunted(word):
    parents = {int(name): parent(name) for name in os.listdir("/proc") if name.isdigit()}
    live = {pid for pid, above in parents.items() if above}
    found = {pid for pid in live if wears(pid, word)}
    grown = found
    while grown:
        grown = {pid for pid in live - found if parents[pid] in grown}
        found |= grown
    return found


def parent(pid):
    """Its parent's number; 0 where it has none, or has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, above = file.read().rpartition(b")")[2].split()[:2]
    except (OSError, ValueError):
        return 0
    return 0 if state in (b"Z", b"X") else int(above)


def wears(pid, word):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return any(part.startswith(word) for part in file.read().split(b"\0"))
    except OSError:
        return False


def can_be_marked():
    """Whether the kernel tells where an environment lies in memory: a forked child takes its mark there."""
    with open("/proc/self/stat", "rb") as file:
        words = file.read().rpartition(b")")[2].split()
    return len(words) > 48 and int(words[47]) > 0


def first_environment():
    """What this process was started with. An interpreter adds the locale it chose, and one below it would then choose
    otherwise than a cold one does."""
    with open("/proc/self/environ", "rb") as file:
        return dict(part.split(b"=", 1) for part in file.read().split(b"\0") if b"=" in part)


def say(told, rest=b""):
    line = json.dumps(told).encode() + b"\n"
    frame = memoryview(_SIZE.pack(len(line) + len(rest)) + line + rest)
    while frame:
        frame = frame[os.write(1, frame) :]


def main(words):
    if not can_be_marked():
        say({"kind": "refused", "body": "no marks"})
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    base = os.environ.get(_MARK, "")
    zygote = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bottom.py")
    process = subprocess.Popen(
        # All of the warmup before the first call: from afar nobody could tell a call that runs from one that waits.
        [sys.orig_argv[0], zygote, str(theirs.fileno()), *words, "whole"],
        executable=sys.executable,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**first_environment(), _MARK.encode(): base.ljust(_ROOM, "-").encode()},
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()
    try:
        Carrier(ours, base, process.pid).serve()
    finally:
        ours.close()
        process.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
