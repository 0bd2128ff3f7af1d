# mypy: ignore-errors
# Runs under the interpreter of a script, which may be older than ours: plain Python 3.10, unannotated.
"""What is seen while something is loaded: whatever would make a child differ from a cold run is Refused.

A cold run imports in its box: there its modules speak, read and write. Here they are loaded once, outside of all boxes.
So what they say is heard, what they would do to the world is prevented, and what they look at of a single call (its
directory, words, input, program, variables) is noted. The files that they read are noted for the host, which watches
them for changes.
"""

import _frozen_importlib_external as importing_files
import contextlib
import gc
import importlib
import os
import signal
import sys
import types

import forking
from noting import Look, Program, Speech, Variables, Words, about, loading, note, notes, own, put_right_later, relative

# Nearly all that is loaded stays: to look for garbage all the while takes a twentieth of the time, and finds little.
_SELDOM = (1_000_000, 10, 10)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_MOST_FILES = 256
_SEEDED = 624
# Nothing can be put there, and nothing that anybody looks for is found. One that is gone would do as well, if there
# were no C libraries that give up without a directory.
_NOWHERE = "/proc/self/ns"
# Events of the interpreter, by what would be done: to files and to this process; to other processes and in the net,
# which a script may do in its warmup, and a module may not. A box may have another name and other neighbours.
_CHANGES = frozenset(
    (
        *("os.chdir", "os.chmod", "os.chown", "os.link", "os.lockf", "os.mkdir", "os.remove", "os.removexattr"),
        *("os.rename", "os.rmdir", "os.setxattr", "os.symlink", "os.truncate", "os.utime", "sqlite3.connect"),
        *("fcntl.flock", "fcntl.lockf", "resource.prlimit", "resource.setrlimit", "syslog.openlog", "syslog.syslog"),
        "sys.addaudithook",
    )
)
_DEALINGS = frozenset(
    (
        *("os.exec", "os.fork", "os.forkpty", "os.kill", "os.killpg", "os.posix_spawn", "os.spawn", "os.system"),
        *("pty.spawn", "signal.pthread_kill", "subprocess.Popen", "socket.bind", "socket.connect", "socket.sendmsg"),
        *("socket.sendto", "socket.getaddrinfo", "socket.gethostbyaddr", "socket.gethostbyname", "socket.gethostname"),
        *("socket.getnameinfo", "socket.sethostname"),
    )
)
_LOOKS = frozenset(("os.listdir", "os.scandir"))
_LOOKING = ("getcwd", "getcwdb", "stat", "lstat", "access", "readlink")
_RANDOM = ("random", "numpy.random")

_before = {}
_random = {}
opened = set()
"""Files that were opened for reading, beyond those of the interpreter and its packages."""


class Refused(Exception):
    """This script is not to be run warm; the message says why."""


class Prevented(BaseException):
    """Nobody who is loaded is to go on after this, nor to take it for one of the errors that he expects."""


def roots():
    """Where files lie that do not change while a process lives: those of the interpreter and its packages."""
    ours = os.path.dirname(os.path.abspath(__file__))
    return tuple(f"{place}{os.sep}" for place in (sys.prefix, sys.base_prefix, os.path.dirname(os.__file__), ours))


def prepare():
    """Have the interpreter tell what happens, which cannot be taken back: in children nobody listens."""
    sys.addaudithook(_heard)


def _listen(on):
    loading[:] = [roots()] if on else []


def _heard(event, args):
    if not loading:
        return
    if event == "open":
        _on_open(*args)
    elif event in _CHANGES:
        if not _by_import(sys._getframe(1)):
            _prevent(f"did: {event}")
    elif event in _DEALINGS:
        if not own(sys._getframe(1)) and not put_right_later(sys._getframe(1)):
            _prevent(f"did: {event}")
    elif event in _LOOKS and relative("." if args[0] is None else args[0]):
        _prevent("cwd")
    elif event == "import" and args[0] in _RANDOM:
        _note_random(args[0])


def _on_open(path, mode, flags):
    if isinstance(path, int) or _by_import(sys._getframe(2)):
        return
    path = os.fsdecode(path)
    if relative(path):
        _prevent("cwd")
    elif flags & _WRITES and path != os.devnull:
        _prevent("did: open")
    elif not path.startswith((*loading[0], "/dev/", "/proc/", "/sys/")):
        opened.add(path)
        if len(opened) > _MOST_FILES:
            _prevent("files")


def _by_import(frame):
    """What reads modules, and puts byte code beside them."""
    return frame.f_globals is importing_files.__dict__


def _prevent(why):
    note(why)
    raise Prevented(why)


@contextlib.contextmanager
def watched(path, names):
    """While something is loaded for the script at `path`, which uses these names."""
    about[:] = path, frozenset(names)
    notes.clear()
    try:
        with _nowhere(), _streams(), _variables(), _stand_ins(), _collector():
            forking.begin_notes()
            _listen(True)
            try:
                yield
            finally:
                _listen(False)
                forking.end_notes()
    except Refused as refusal:
        note(str(refusal))
    if len(os.listdir("/proc/self/task")) > 1:
        note("threads")
    if notes:
        raise Refused(notes[0])


@contextlib.contextmanager
def _nowhere():
    """So that no relative path leads to anything of the host."""
    here = os.getcwd()
    os.chdir(_NOWHERE)
    try:
        yield
    finally:
        os.chdir(here)


@contextlib.contextmanager
def _streams():
    """What is said behind the back of the streams goes into a file whose size tells, and what is read comes from one
    whose place tells.

    The stream objects were made for pipes, as a cold run has them, and keep to that. Afterwards nobody is listening.
    """
    for number, name in ((0, "read"), (1, "said")):
        fd = os.memfd_create(name)
        os.dup2(fd, number)
        os.close(fd)
    os.write(0, b"\n")
    os.lseek(0, 0, os.SEEK_SET)
    os.dup2(1, 2)
    spoken = (sys.__stdout__, sys.__stderr__)
    for stream in spoken:
        stream.write = Speech(stream)
    try:
        yield
    finally:
        for stream in spoken:
            del stream.write
        for stream in (*spoken, sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # Whatever a module has put there, what it said is heard by now.
                stream.flush()
        with contextlib.suppress(OSError):  # A module may have closed them, which a child would not see.
            if os.lseek(0, 0, os.SEEK_CUR) != 0:
                note("stdin")
            if os.fstat(1).st_size or os.fstat(2).st_size:
                note("said")
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            if nothing != number:
                os.dup2(nothing, number)
        if nothing > 2:
            os.close(nothing)


@contextlib.contextmanager
def _variables():
    """One store that notes for both faces of the environment; afterwards the one that they share in a cold run."""
    usual = os.environ._data
    noting = os.environ._data = os.environb._data = Variables(usual)
    try:
        yield
    finally:
        os.environ._data = os.environb._data = usual
        if dict(noting.items()) != usual:
            note("environment")


@contextlib.contextmanager
def _stand_ins():
    """`sys`, `__main__` and functions of `os` that note who looks at what; afterwards those of a cold run again."""
    usual, main = sys.modules["__main__"], types.ModuleType("__main__")
    vars(main).update({"__file__": about[0], "__builtins__": usual.__builtins__, "__cached__": None})
    main.__class__ = Program
    sys.modules["__main__"] = main
    sys.__class__ = Words
    del sys.argv
    kept = {name: getattr(os, name) for name in _LOOKING}
    for name, function in kept.items():
        setattr(os, name, Look(function))
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(os, name, function)
        sys.__class__ = types.ModuleType
        sys.argv = about[:1]
        sys.modules["__main__"] = usual
        if sys.modules.get("__mp_main__") is main:  # Which multiprocessing puts there.
            sys.modules["__mp_main__"] = usual
        if sys.getrefcount(main) > 2 and _kept(main):
            note("__main__")


def _kept(main):
    """Whether a module keeps it, for the program of a child is another. Garbage that holds it does not matter."""
    modules = [module for module in list(sys.modules.values()) if isinstance(module, types.ModuleType)]
    return any(value is main for module in modules for value in list(vars(module).values()))


@contextlib.contextmanager
def _collector():
    usual = gc.get_threshold()
    gc.set_threshold(*_SELDOM)
    try:
        yield
    finally:
        gc.freeze()  # Or the usual thresholds would have all of it looked through at once.
        if gc.get_threshold() == _SELDOM:  # Else a library chose its own, which a cold run would have, too.
            gc.set_threshold(*usual)


def begin_imports():
    """Note what modules may change and would then have changed in a cold run, too."""
    _before.clear()
    _before.update((number, signal.getsignal(number)) for number in signal.valid_signals())
    for name in _RANDOM:
        if name in sys.modules:
            _note_random(name)


def end_imports():
    """Children have the handlers of a fresh interpreter and random numbers of their own."""
    if any(signal.getsignal(number) is not handler for number, handler in _before.items()):
        note("signals")
    if any(_numbers(sys.modules[name]) != numbers for name, numbers in _random.items() if numbers):
        note("seed")
    _random.clear()


def _note_random(name):
    """Load the module before anybody can use it, and note where its numbers begin."""
    if name not in _random:
        _random[name] = []
        with contextlib.suppress(Exception):  # Whoever asked for it meets the same failure.
            module = importlib.import_module(name)
            module.random()  # The first number has it make hundreds, and note that it did.
            _random[name] = _numbers(module)


def _numbers(module):
    """Another seed gives others, and a few that were drawn do not."""
    state = module.get_state() if hasattr(module, "get_state") else module.getstate()
    return list(state[1])[:_SEEDED]
