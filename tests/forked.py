"""Python programs that end by themselves, each a fork of one interpreter that has already imported the rooms.

An interpreter that begins with nothing imports for most of a second before it does what a test asks for. A fork has its
own memory, descriptors, directory, environment and exit, so to the program it makes no difference, with one exception:
what an import does is not seen here. Tests of imports, of signals at the start and of the command's own beginning start
a real interpreter (`sys.executable`).
"""

import array
import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import warnings

MODULES = (
    "numpy.random",
    "rollwright.cli.ctl",
    "rollwright.cli.evaluating",
    "rollwright.cli.keys",
    "rollwright.cli.orchestrate",
    "rollwright.cli.orchestrating",
    "rollwright.cli.serve",
    "rollwright.renderers",
    "uvloop",
)
REQUEST_BYTES = 1 << 20


def python(*arguments, cwd=None, env=None, timeout=120, begun=lambda pid: None):
    """Like `subprocess.run` of `python ARGUMENTS` with both outputs captured and nothing to read; one at a time.

    Arguments are those that begin an interpreter: `-m MODULE ...` or `-c TEXT`, and `-W error` before them. `begun` is
    told its process id, for signals while this has not returned."""
    errors = arguments[:2] == ("-W", "error")
    request = {
        "arguments": arguments[2:] if errors else arguments,
        "errors": errors,
        "cwd": os.getcwd() if cwd is None else os.fspath(cwd),
        "environment": dict(os.environ if env is None else env),
    }
    channel = _nursery()
    out, err = _Pipe(), _Pipe()
    _send(channel, request, (out.writer, err.writer))
    os.close(out.writer)
    os.close(err.writer)
    channel.settimeout(timeout)
    pid = json.loads(channel.recv(64))
    begun(pid)
    try:
        _read((out, err), time.monotonic() + timeout)
        code = json.loads(channel.recv(64))
    except TimeoutError:
        os.kill(pid, signal.SIGKILL)
        channel.settimeout(timeout)
        channel.recv(64)
        raise subprocess.TimeoutExpired(arguments, timeout, out.text(), err.text()) from None
    return subprocess.CompletedProcess(list(arguments), code, out.text(), err.text())


class _Pipe:
    def __init__(self):
        self.reader, self.writer = os.pipe()
        self.read = bytearray()

    def text(self):
        return self.read.decode()


def _read(pipes, deadline):
    """To the end of each: then no process below the program holds them either."""
    with selectors.DefaultSelector() as ready:
        for pipe in pipes:
            ready.register(pipe.reader, selectors.EVENT_READ, pipe)
        try:
            while ready.get_map():
                events = ready.select(deadline - time.monotonic())
                if not events:
                    raise TimeoutError
                for key, _ in events:
                    _read_some(ready, key.data)
        finally:
            for pipe in pipes:
                with contextlib.suppress(OSError):
                    os.close(pipe.reader)


def _read_some(ready, pipe):
    some = os.read(pipe.reader, 1 << 16)
    pipe.read += some
    if not some:
        ready.unregister(pipe.reader)


def _send(channel, request, descriptors):
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
    channel.sendmsg([json.dumps(request).encode()], [rights])


@functools.cache
def _nursery():
    """One for each process that runs tests. It ends when the other end of its channel is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES)
    with theirs:
        argv = [sys.executable, __file__, str(theirs.fileno())]
        nursery = subprocess.Popen(argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    # Exit handlers run last to first: it sees the end, and then it is waited for.
    atexit.register(nursery.wait)
    atexit.register(ours.close)
    return ours


# --- the interpreter that is forked -----------------------------------------------------------------------------------


def serve(channel):
    """Returns in each fork, with what it shall run; in the parent at the end."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, REQUEST_BYTES, 2)
        if not message:
            return None
        pid = os.fork()
        if not pid:
            channel.close()
            return _become(json.loads(message), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(json.dumps(pid).encode())
        _, status = os.waitpid(pid, 0)
        channel.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())


def _become(request, descriptors):
    for number, descriptor in enumerate(descriptors, start=1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if request["errors"]:
        warnings.simplefilter("error")
    return request["arguments"]


def run(kind, what, *arguments):
    # The place of this file is where an interpreter puts the directory it was started in.
    sys.path[0] = os.getcwd() if kind == "-m" else ""
    sys.argv = [kind, *arguments]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), main.__dict__)


def warm_up():
    """Import what programs import, and read a command line once, as that imports and remembers a lot more."""
    with warnings.catch_warnings(action="error"), contextlib.redirect_stdout(io.StringIO()):
        for name in MODULES:
            importlib.import_module(name)
        assert importlib.import_module("rollwright.cli.main").run(["eval", "reverse-text", "--dry-run"]) == 0
    # A fork has the thread that forks and no other, so none may be missed.
    assert threading.active_count() == 1
    gc.freeze()


if __name__ == "__main__":
    warm_up()
    program = serve(socket.socket(fileno=int(sys.argv[1])))
    # From here, so that a program ends as any other: its exit code, its traceback, its threads and exit handlers.
    if program:
        run(*program)
