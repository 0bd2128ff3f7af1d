# mypy: ignore-errors
# Runs under the interpreter of a script, which may be older than ours: plain Python 3.10, unannotated.
"""What is seen while something is loaded: whatever would make a child differ from a cold run is Refused.

A cold run imports in its box: there its modules speak, read and write. Here they are loaded once, outside of all boxes.
So what they say is heard, what they would do to the world is prevented, and what they look at of a single call (its
directory, words, input, program, variables) is noted. The files that they read are noted for the host, which watches
them for changes.
"""

import _frozen_importlib as importing
import _frozen_importlib_external as importing_files
import contextlib
import gc
import importlib
import os
import signal
import sys
import types

import forking

LOADED_AS = "__rollwright_warm__"
"""The name of a script that is loaded as a module."""
# Nearly all that is loaded stays: to look for garbage all the while takes a twentieth of the time, and finds little.
_SELDOM = (1_000_000, 10, 10)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_MOST_FILES = 256
_SEEDED = 624
# Where a directory can be made that is gone at once: nothing is found in it, and nothing can be put there.
_PLACES = ("/dev/shm", "/tmp", "/var/tmp", ".")
# Events of the interpreter, by what would be done: to files and to this process; to other processes and in the net,
# which a script may do in its warmup, and a module may not. A box may have another name and other neighbours.
_CHANGES = frozenset(
    (
        *("os.chdir", "os.chmod", "os.chown", "os.link", "os.lockf", "os.mkdir", "os.remove", "os.removexattr"),
        *("os.rename", "os.rmdir", "os.setxattr", "os.symlink", "os.truncate", "os.utime", "sqlite3.connect"),
        *("fcntl.flock", "fcntl.lockf", "resource.prlimit", "resource.setrlimit", "syslog.openlog", "syslog.syslog"),
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
_PLAIN = frozenset(("__name__", "__file__", "__spec__", "__loader__", "__package__", "__cached__", "__class__"))
_OF_ALL = frozenset(("__dict__", "__doc__", "__annotations__"))

_hooks = []
_notes = []
_on = []
_before = {}
_random = {}
_loaded = ["", frozenset()]
"""For whom something is loaded: the script's path, and the names that it uses."""
opened = set()
"""Files that were opened for reading, beyond those of the interpreter and its packages."""


class Refused(Exception):
    """This script is not to be run warm; the message says why."""


class Prevented(BaseException):
    """Nobody who is loaded is to go on after this, nor to take it for one of the errors that he expects."""


def note(why):
    """Something was seen that a child would not do as a cold run does."""
    _notes.append(why)


def roots():
    """Where files lie that do not change while a process lives: those of the interpreter and its packages."""
    own = os.path.dirname(os.path.abspath(__file__))
    return tuple(f"{place}{os.sep}" for place in (sys.prefix, sys.base_prefix, os.path.dirname(os.__file__), own))


def prepare():
    """Once, while there is little to search: have the interpreter tell what happens, and find where it notes that, so
    that nobody is told when nothing is loaded. Else each child would pay for it with every file that it opens."""
    sys.addaudithook(_heard)
    _hooks[:] = [found for found in gc.get_referrers(_heard) if type(found) is list]
    _listen(False)


def _listen(on):
    _on[:] = [roots()] if on else []
    for hooks in _hooks:
        if on and _heard not in hooks:
            hooks.append(_heard)
        elif not on and _heard in hooks:
            hooks.remove(_heard)


def _heard(event, args):
    if not _on:
        return
    if event == "open":
        _on_open(*args)
    elif event in _CHANGES:
        if not _by_import(sys._getframe(1)):
            _prevent(f"did: {event}")
    elif event in _DEALINGS:
        if not _own(sys._getframe(1)):
            _prevent(f"did: {event}")
    elif event in _LOOKS and _relative("." if args[0] is None else args[0]):
        _prevent("cwd")
    elif event == "import" and args[0] in _RANDOM:
        _note_random(args[0])


def _on_open(path, mode, flags):
    if isinstance(path, int) or _by_import(sys._getframe(2)):
        return
    path = os.fsdecode(path)
    if _relative(path):
        _prevent("cwd")
    elif flags & _WRITES and path != os.devnull:
        _prevent("did: open")
    elif not path.startswith((*_on[0], "/dev/", "/proc/", "/sys/")):
        opened.add(path)
        if len(opened) > _MOST_FILES:
            _prevent("files")


def _by_import(frame):
    """What reads modules, and puts byte code beside them."""
    return frame.f_globals is importing_files.__dict__


def _prevent(why):
    note(why)
    raise Prevented(why)


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


class Words(types.ModuleType):
    """What `sys` is while something is loaded: it notes that somebody looks at the words of a call."""

    def __getattr__(self, name):
        if name != "argv":
            raise AttributeError(f"module 'sys' has no attribute {name!r}")
        if _imported(sys._getframe(1)):
            note("argv")
        return _loaded[:1]


def _imported(frame):
    """Whether a module that is being imported asks, and not the script, which will ask again."""
    while frame is not None:
        if frame.f_globals is importing.__dict__:
            return True
        frame = frame.f_back
    return False


class Speech:
    """Stands in for the `write` of a stream while something is loaded. What the script itself says it will say again
    when it is run; a library may say a thing but once in a process."""

    def __init__(self, stream):
        self.write = stream.write

    def __call__(self, text):
        if not _on or not isinstance(text, str):
            return self.write(text)
        if not _own(sys._getframe(1)):
            note("said")
        return len(text)


def _own(frame):
    """Whether it is the script, itself or through the standard library."""
    while frame is not None:
        names = frame.f_globals
        name = names.get("__name__") or ""
        if name == LOADED_AS:
            return True
        if names is importing.__dict__ or name.partition(".")[0] not in sys.stdlib_module_names:
            return False
        frame = frame.f_back
    return False


class Look:
    """Stands in for a function of `os` that looks at a place which may be relative to where a call is. Whoever keeps it
    has the function itself in all but name, also in the sets that `os` has of its functions."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *args, **kwargs):
        if _on and (not args or _relative(args[0])) and not kwargs.get("dir_fd") and not _sets_right(sys._getframe(1)):
            note("cwd")
        return self.function(*args, **kwargs)

    def __eq__(self, other):
        return other is self or other == self.function

    def __hash__(self):
        return hash(self.function)


def _sets_right(frame):
    """A module that keeps where a program begins, in which each child puts that right."""
    return frame.f_globals.get("__name__") == "multiprocessing.process"


def _relative(path):
    """Names of code that lies in no file are none of a place."""
    if isinstance(path, int):
        return False
    path = os.fsdecode(path)
    return not path.startswith(("/", "<"))


class Program(types.ModuleType):
    """What `__main__` is while something is loaded: a script that has not begun. It notes that somebody looks for what
    is there once it has."""

    def __getattribute__(self, name):
        if name in _OF_ALL or (name in _loaded[1] and name not in _PLAIN):
            note("__main__")
        return types.ModuleType.__getattribute__(self, name)


@contextlib.contextmanager
def watched(path, names):
    """While something is loaded for the script at `path`, which uses these names."""
    _loaded[:] = path, frozenset(names)
    _notes.clear()
    here = os.getcwd()
    try:
        with _nowhere(here), _streams(), _variables(), _stand_ins(), _collector():
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
    if _notes:
        raise Refused(_notes[0])


@contextlib.contextmanager
def _nowhere(here):
    """In a directory that is gone, so that no relative path leads anywhere."""
    for place in _PLACES:
        name = os.path.join(place, f"rollwright-{os.getpid()}-{os.urandom(4).hex()}")
        try:
            os.mkdir(name, 0o700)
        except OSError:
            continue
        os.chdir(name)
        os.rmdir(os.getcwd())
        break
    else:
        raise Refused("no place")
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
    own = os.environ._data
    noting = os.environ._data = os.environb._data = Variables(own)
    try:
        yield
    finally:
        os.environ._data = os.environb._data = own
        if dict(noting.items()) != own:
            note("environment")


@contextlib.contextmanager
def _stand_ins():
    """`sys`, `__main__` and functions of `os` that note who looks at what; afterwards those of a cold run again."""
    usual, main = sys.modules["__main__"], types.ModuleType("__main__")
    vars(main).update({"__file__": _loaded[0], "__builtins__": usual.__builtins__, "__cached__": None})
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
        sys.argv = _loaded[:1]
        sys.modules["__main__"] = usual
        if sys.modules.get("__mp_main__") is main:  # Which multiprocessing puts there.
            sys.modules["__mp_main__"] = usual
        if sys.getrefcount(main) > 2:  # Somebody keeps it, and the program of a child is another.
            note("__main__")


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
    if any(_numbers(sys.modules[name]) != numbers for name, numbers in _random.items()):
        note("seed")
    _random.clear()


def _note_random(name):
    """Load the module before anybody can use it, and note where its numbers begin."""
    if name not in _random:
        _random[name] = None
        module = importlib.import_module(name)
        module.random()  # The first number has it make hundreds, and note that it did.
        _random[name] = _numbers(module)


def _numbers(module):
    """Another seed gives others, and a few that were drawn do not."""
    state = module.get_state() if hasattr(module, "get_state") else module.getstate()
    return list(state[1])[:_SEEDED]
