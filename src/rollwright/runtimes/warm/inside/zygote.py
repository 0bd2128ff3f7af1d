# mypy: ignore-errors
# Runs under the interpreter of a script, which may be older than ours: plain Python 3.10, unannotated.
"""A process that has loaded what a script needs, and forks a fresh child for every call of it.

    zygote.py CHANNEL SCRIPT SHA256

Runs under the script's own interpreter, apart from Rollwright, which it does not import; only the standard library is
used. Requests arrive as packets on CHANNEL, a descriptor that no child keeps: an id, the call's description, and the
descriptors of its three streams; a long description comes as a file before them. Nothing is ever read from or said on
stdout.

The script's imports are done once, and where it defines `warmup`, the script is loaded under another name and warmed.
The child then runs the script as `__main__` from its first line to its last, as a cold interpreter would, finding its
imports done. Nothing of a call stays here. Taking a seat in a box is in `seating.py`, ending is in `ending.py`.
"""

import sys

_AT_START = frozenset(sys.modules)  # What a cold interpreter has loaded before its script, too.

import array  # noqa: E402
import ast  # noqa: E402
import contextlib  # noqa: E402
import gc  # noqa: E402
import hashlib  # noqa: E402
import importlib.machinery  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import select  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import struct  # noqa: E402
import types  # noqa: E402

import ending  # noqa: E402
import forking  # noqa: E402
import seating  # noqa: E402
import worker  # noqa: E402

_HEAD = struct.Struct("!cQ")
_NUMBER = struct.Struct("!i")
_FDS = array.array("i")
_PACKET = 65536
_ROOM = socket.CMSG_SPACE(5 * _FDS.itemsize)
# The part of the decoder that is written in C: the rest of it would cost each child some fifty pages.
_read_json = json.JSONDecoder().scan_once
# Nearly all that is loaded stays: to look for garbage all the while takes a twentieth of the time, and finds little.
_SELDOM = (1_000_000, 10, 10)
_LOADED_AS = "__rollwright_warm__"


class Refused(Exception):
    """This script is not to be run warm; the message says why."""


class Script:
    """The script as it was when this process began, its imports done."""

    def __init__(self, path, digest):
        with open(path, "rb") as file:
            source = file.read()
        if hashlib.sha256(source).hexdigest() != digest:
            raise Refused("changed")
        self.path = path
        self.source = source
        try:
            self.code = compile(source, path, "exec", dont_inherit=True)
            self.tree = ast.parse(source)
        except (SyntaxError, ValueError):
            raise Refused("syntax") from None
        self.kept = None

    def load(self):
        """Import what its top level imports, and run its warmup. What fails here fails in the child as it does cold."""
        for statement in _imports(self.tree.body):
            try:
                _import(statement)
            except Exception:  # The child meets the same failure at the same line, and tells it in its own words.
                continue
        if any(isinstance(part, ast.FunctionDef) and part.name == "warmup" for part in self.tree.body):
            self._warm_up()

    def module(self):
        """The script as a module whose functions can be called, not as a program; the same one each time."""
        if self.kept is None:
            module = types.ModuleType(_LOADED_AS)
            module.__file__ = self.path
            sys.modules[_LOADED_AS] = module
            exec(self.code, module.__dict__)
            self.kept = module  # Its end would run finalizers, which no cold run has run at this point.
        return self.kept

    def _warm_up(self):
        register = ending.note_registrations()
        try:
            self.module().warmup()
        except BaseException as error:
            raise Refused(f"warmup: {type(error).__name__}") from error
        finally:
            ending.forget_registrations(register, sys.modules.pop(_LOADED_AS))

    def run(self, argv):
        """Run it as `__main__`; the exit status. Frames of this file are cut off from what it tells about itself."""
        main = types.ModuleType("__main__")
        # What a cold interpreter puts there, and nothing else.
        names = {
            "__file__": self.path,
            "__cached__": None,
            "__builtins__": sys.modules["builtins"],
            "__annotations__": {},
        }
        main.__dict__.update(names)
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", self.path)
        sys.modules["__main__"] = main
        sys.argv = [self.path, *argv]
        sys.orig_argv = [sys.orig_argv[0], self.path, *argv]
        return ending.run_and_finish(self.code, main)


def _imports(body):
    for part in body:
        if isinstance(part, (ast.Import, ast.ImportFrom)):
            yield part
        elif isinstance(part, ast.Try):
            yield from _imports(part.body)


def _import(statement):
    if isinstance(statement, ast.Import):
        for name in statement.names:
            importlib.import_module(name.name)
    elif statement.module and not statement.level and statement.module != "__future__":
        module = importlib.import_module(statement.module)
        for name in statement.names:
            if name.name != "*" and not hasattr(module, name.name):
                importlib.import_module(f"{statement.module}.{name.name}")


def _check_neighbours(directory):
    """A file beside the script that is named like a module we use would be found first by a cold run."""
    ours = {name.partition(".")[0] for name in set(sys.modules) - _AT_START}
    beside = {name.partition(".")[0] for name in os.listdir(directory)}
    if ours & beside:
        raise Refused("shadows")


class Variables(dict):
    """The environment's own store while the script is loaded: it notes the names that are looked at, since a module
    which has read a variable of this process would go on with it in a box where it has another value."""

    seen = set()

    def __getitem__(self, key):
        self.seen.add(key)
        return dict.__getitem__(self, key)

    def __contains__(self, key):
        self.seen.add(key)
        return dict.__contains__(self, key)

    def __iter__(self):
        self.seen.update(dict.keys(self))
        self.seen.add(b"*")
        return dict.__iter__(self)


def _load(path, digest):
    directory = os.path.dirname(path)
    _check_neighbours(directory)
    script = Script(path, digest)
    sys.path[0] = directory
    for ours in ("ending", "forking", "seating", "worker"):
        del sys.modules[ours]
    own = os.environ._data
    os.environ._data = Variables(own)
    before = dict(os.environ._data.items())
    os.environ._data.seen.clear()
    usual = gc.get_threshold()
    gc.set_threshold(*_SELDOM)
    try:
        script.load()
    finally:
        if gc.get_threshold() == _SELDOM:  # Else a library chose its own, which a cold run would have, too.
            gc.set_threshold(*usual)
        changed = dict(os.environ._data.items()) != before
        os.environ._data = dict(os.environ._data.items())
    if len(os.listdir("/proc/self/task")) > 1:
        raise Refused("threads")
    if changed:
        raise Refused("environment")
    return script


def _files():
    """Loaded files that are not part of the interpreter or its packages: the host watches them for changes."""
    roots = (sys.prefix + os.sep, sys.base_prefix + os.sep, os.path.dirname(os.__file__) + os.sep)
    found = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    own = os.path.dirname(os.path.abspath(__file__)) + os.sep
    roots += (own,)
    return sorted({f for f in found if isinstance(f, str) and os.path.isabs(f) and not f.startswith(roots)})


def _whole(fd):
    """The description of a call that was too long for a packet."""
    with open(fd, "rb") as file:
        return file.read()


class Server:
    """Forks on request and tells the ends. A child stays unreaped until the host is done with its id."""

    def __init__(self, channel, script):
        self.channel = channel
        self.script = script
        self.poller = select.poll()
        self.poller.register(channel.fileno(), select.POLLIN)
        self.calls = {}
        self.handles = {}
        self.collapsed = False

    def serve(self):
        while True:
            for fd, _ in self.poller.poll():
                if fd != self.channel.fileno():
                    self._tell_end(fd)
                elif not self._hear():
                    return

    def close(self):
        for call in list(self.calls):
            self._kill(call)

    def _hear(self):
        packet, extra, _, _ = self.channel.recvmsg(_PACKET, _ROOM, socket.MSG_CMSG_CLOEXEC)
        if not packet:
            return False
        fds = array.array("i")
        for _, _, data in extra:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        kind, call = _HEAD.unpack_from(packet)
        if kind == b"R" and not self.collapsed:
            # Huge pages make a fork, and the first write to a page after it, several times cheaper. They take a while
            # to make, which workers that are forked once are not worth.
            self.collapsed = True
            seating.collapse_pages()
        if kind in (b"R", b"W"):
            self._fork(call, packet, fds, self._worker if kind == b"W" else self._child)
        elif kind == b"K":
            self._kill(call)
        elif kind == b"D":
            self._reap(call)
        return True

    def _fork(self, call, packet, fds, become):
        try:
            pid = forking.fork()
        except OSError as error:
            pid = -1
            self._send(b"F", call, str(error).encode())
            self._send(b"E", call, _NUMBER.pack(0))
        if pid == 0:
            become(call, packet, fds)
        for fd in fds:
            os.close(fd)
        if pid < 0:
            return
        handle = os.pidfd_open(pid)
        self.calls[call] = (pid, handle)
        self.handles[handle] = call
        self.poller.register(handle, select.POLLIN)
        self._send(b"S", call, _NUMBER.pack(pid))

    def _child(self, call, packet, fds):
        """Become the script. A seat that cannot be taken is told, and the host runs the script cold.

        The call is read here and not before the fork: pages that the zygote writes to are copied for it as well, while
        a child lives, so that nothing is saved by working ahead.
        """
        status = 1
        try:
            try:
                told, _ = _read_json((packet[_HEAD.size :] or _whole(fds.pop(0))).decode(), 0)
                seating.take(told, fds[:3], *fds[3:])
            except BaseException as error:
                self._send(b"F", call, f"{type(error).__name__}: {error}".encode()[:2000])
                os._exit(0)
            self._let_go()
            status = self.script.run(told["argv"])
        finally:
            ending.leave(status)

    def _worker(self, call, packet, fds):
        """Become a worker that answers one call after the other on a channel of its own."""
        try:
            os.setsid()
            self._let_go()
            worker.serve(socket.socket(fileno=fds[0]), self.script)
        finally:
            ending.leave(0)

    def _let_go(self):
        self.channel.close()
        for handle in self.handles:
            os.close(handle)

    def _tell_end(self, handle):
        pid, _ = self.calls[self.handles[handle]]
        self.poller.unregister(handle)
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        self._send(b"E", self.handles[handle], _NUMBER.pack(status))

    def _kill(self, call):
        # The leader first: once it is dead nothing new joins its group, and then the whole group is struck at once.
        if call in self.calls:
            for strike in (os.kill, os.killpg):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    strike(self.calls[call][0], signal.SIGKILL)

    def _reap(self, call):
        if call in self.calls:
            pid, handle = self.calls.pop(call)
            del self.handles[handle]
            os.close(handle)
            os.waitpid(pid, 0)

    def _send(self, kind, call, body):
        self.channel.send(_HEAD.pack(kind, call) + body)


def main(words):
    channel = socket.socket(fileno=int(words[0]))
    channel.set_inheritable(False)
    # The stream objects were made for pipes, as a cold run has them; what is said while loading is said to nobody.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (1, 2):
        os.dup2(nowhere, number)
    os.close(nowhere)
    try:
        seating.prepare()
        forking.note_requests(_AT_START)
        script = _load(words[1], words[2])
        ending.restore_signals()
        forking.end_notes()
        seating.prepare_stdin()
        sys.stdout.flush()
        sys.stderr.flush()
    except Refused as refusal:
        channel.send(_HEAD.pack(b"N", 0) + str(refusal).encode())
        return
    # Frozen, no later collection touches the pages that all children share.
    gc.collect()
    gc.freeze()
    known = {"reads": sorted(os.fsdecode(name) for name in Variables.seen), "files": _files()}
    channel.send(_HEAD.pack(b"Y", 0) + json.dumps(known).encode())
    server = Server(channel, script)
    try:
        server.serve()
    finally:
        server.close()


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)
