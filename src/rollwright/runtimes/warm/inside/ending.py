# mypy: ignore-errors
# Runs under the interpreter of a script, which may be older than ours: plain Python 3.10, unannotated.
"""How a forked child ends: as its interpreter ends, without taking the whole heap apart.

The interpreter itself tells how the script failed, joins threads and runs what was registered for the end. What this
file registers comes last there and is called by no Python code, as what a cold interpreter frees is freed by none. For
all that the script made, it does what would come then (flush, collect, free the modules, collect again), and ends the
process; what the zygote had loaded is let go with it.
"""

import atexit
import collections
import gc
import io
import itertools
import os
import signal
import sys
import weakref

_signals = {}
_registered = []
_UNHANDLED = (signal.SIGKILL, signal.SIGSTOP)
_WRITERS = frozenset((io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper))
_HOOKS = ("displayhook", "excepthook", "unraisablehook", "breakpointhook")
_STREAMS = ("stdin", "stdout", "stderr")
# Of what an interpreter forgets first, what a script can hang its own things on, and what a late import looks at.
_FORGOTTEN = ("path", "argv", "ps1", "ps2", "last_type", "last_value", "last_traceback", "last_exc", "meta_path")
# Without these, late warnings and tracebacks are told in fewer words, without the lines of the source.
_TELLING = ("io", "warnings", "traceback")
_LONG = 1 << 63
# There, `raise` without an exception raises it with the traceback that it was caught with.
_KEEPS_TRAIL = sys.version_info[:2] == (3, 10)


class Settings:
    """Entries of dictionaries that are to be set by no Python code: what they free finds no frame below it."""

    def __init__(self):
        self.dicts, self.keys, self.values = [], [], []

    def add(self, names, key, value=None):
        self.dicts.append(names)
        self.keys.append(key)
        self.values.append(value)

    def when_called(self):
        """Arguments for a call that does it all; what is added before the call counts."""
        return collections.deque, map(dict.__setitem__, self.dicts, self.keys, self.values), 0


class End:
    """What is known of the end of this process."""

    def __init__(self):
        self.status = 0
        self.modules = 0
        """How many were loaded before the fork."""
        self.main = None
        self.is_near = False
        self.freed, self.cleared = Settings(), Settings()
        self.collections = [], [], []


_end = End()


def prepare():
    """Be the first to register for the end of this process, so that what comes last is ours.

    Where somebody was first, as a site may be, the interpreter takes all apart itself: that takes longer.
    """
    if atexit._ncallbacks():
        return
    freed, cleared = _end.freed, _end.cleared
    steps = [(_begin_end,), _collecting(0), freed.when_called(), _collecting(1), (_go_on,), cleared.when_called()]
    for step in reversed((*steps, _collecting(2), (_leave,))):
        atexit.register(*step)


def _collecting(number):
    return collections.deque, map(gc.collect, _end.collections[number]), 0


def note_signals():
    """Before the script is loaded: the handlers of a fresh interpreter."""
    for number in signal.valid_signals():
        _signals[number] = signal.getsignal(number)


def note_registrations():
    """Note what is registered for the end of this process from here on."""
    register = atexit.register

    def noted(function, *args, **kwargs):
        _registered.append(function)
        return register(function, *args, **kwargs)

    atexit.register = noted
    return register


def forget_registrations(register, module):
    """Drop what the script itself registered: it will do so again. What its libraries registered stays, as it is done
    once per process in a cold run, too."""
    atexit.register = register
    for function in _registered:
        if getattr(function, "__globals__", None) is module.__dict__:
            atexit.unregister(function)
    _registered.clear()


def restore_signals():
    """After the script is loaded: the handlers of a fresh interpreter again, for all children."""
    for number, handler in _signals.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def reseed():
    """New random numbers in each child. Python's own generator sees to itself after a fork."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def rehearse():
    """What is done at the end of a child and leaves no trace."""
    _end.modules = len(sys.modules)
    end = End()
    end.modules = _end.modules
    forget_file({"__file__": "", "__cached__": None})
    _flush_output()
    _plan_freeing(end)
    _plan_clearing(end)
    _flush_rest()
    function, *rest = Settings().when_called()
    function(*rest)
    for step in (_begin_end, _go_on, _leave):  # By hand, they do nothing.
        step()


def forget_file(names):
    """As an interpreter does it when a script has run to its end, and before it ends itself."""
    names.pop("__file__", None)
    names.pop("__cached__", None)


def passed():
    """The script ran to its last line."""
    if "__main__" in sys.modules:
        forget_file(vars(sys.modules["__main__"]))


def failed(error):
    """The script raised. The interpreter tells it once the last frame of this process is left; this cuts that frame off
    from the story, as a cold run does not have it, and foresees the status."""
    error.__traceback__ = error.__traceback__.tb_next
    if isinstance(error, SystemExit):
        _end.status = _exit_status(error)
        return
    _end.status = -signal.SIGINT if type(error) is KeyboardInterrupt else 1
    names = vars(sys.modules["__main__"]) if "__main__" in sys.modules else {}
    hook = getattr(sys, "excepthook", None)
    if hook is sys.__excepthook__ and not _KEEPS_TRAIL:
        forget_file(names)
    elif hasattr(sys, "excepthook"):
        sys.excepthook = _watched(hook, names)


def _watched(hook, names):
    """The hook of a script, which may end the process with a status of its own."""

    def watched(kind, error, trail):
        sys.excepthook = hook
        if _KEEPS_TRAIL:
            trail = error.__traceback__ = trail.tb_next
        try:
            hook(kind, error, trail)
        except BaseException as failure:
            failure.__traceback__ = failure.__traceback__.tb_next
            if isinstance(failure, SystemExit):
                _end.status = _exit_status(failure)
            else:
                forget_file(names)
            raise
        forget_file(names)

    return watched


def _exit_status(error):
    code = getattr(error, "code", error)
    if isinstance(code, int):
        return code & 0xFF if -_LONG <= code < _LONG else 0xFF
    return 0 if code is None else 1


def _begin_end():
    try:
        sys._getframe(1)
        return  # Somebody runs what is registered by hand. Then the interpreter ends without us.
    except ValueError:
        _end.is_near = True
    if not _flush_output() and _end.status >= 0:
        _end.status = 120
    _plan_freeing(_end)


def _flush_output():
    """Whether nothing of the output was lost, which is told as the interpreter tells it."""
    streams = [stream for stream in (getattr(sys, "stdout", None), getattr(sys, "stderr", None)) if stream is not None]
    lost = [(stream, _failure(stream)) for stream in streams]
    for stream, failure in lost:
        if failure is not None and stream is getattr(sys, "stdout", None):
            _tell_ignored(stream, failure)
    return all(failure is None for _, failure in lost)


def _failure(stream):
    try:
        closed = bool(stream.closed)
    except Exception:  # A stream of the script's own making need not know.
        closed = False
    try:
        if not closed:
            stream.flush()
    except BaseException as error:
        error.__traceback__ = error.__traceback__.tb_next
        return error
    return None


def _tell_ignored(stream, error):
    """In the words of this interpreter. The type of what its hook takes is only seen in use."""
    hook, seen = sys.unraisablehook, []
    sys.unraisablehook = seen.append
    _Falling()
    sys.unraisablehook = hook
    told = ("Exception ignored on flushing sys.stdout", None) if sys.version_info >= (3, 13) else (None, stream)
    ignored = type(seen[0])((type(error), error, error.__traceback__, *told))
    try:
        hook(ignored)
    except BaseException:
        sys.__unraisablehook__(ignored)


class _Falling:
    def __del__(self):
        raise ValueError


def _plan_freeing(end):
    """What an interpreter lets go of before it collects: a collection with all in its place comes before."""
    if gc.isenabled():
        end.collections[0].append(2)
    own = sys.__dict__
    for name in _FORGOTTEN:
        if name in own:
            end.freed.add(own, name)
    for name in _STREAMS:
        if own.get(name) is not own.get(f"__{name}__"):
            end.freed.add(own, name, own.get(f"__{name}__"))
    for name in (*_TELLING, "__main__", *_own_modules(end)):
        if name in sys.modules:
            end.freed.add(sys.modules, name)
    if "__main__" in sys.modules:
        end.main = _weak(sys.modules["__main__"])
    end.collections[1].append(2)


def _own_modules(end):
    """The names of what was imported after the fork, without a look at all the others."""
    return reversed(list(itertools.islice(reversed(sys.modules), max(len(sys.modules) - end.modules, 0))))


def _weak(thing):
    try:
        return weakref.ref(thing)
    except TypeError:
        return None


def _go_on():
    if _end.is_near:
        _plan_clearing(_end)


def _plan_clearing(end):
    """What still lives: names of the script that somebody holds, and after them hooks of its own."""
    main = end.main and end.main()
    if main is not None:
        names = vars(main)
        for private in (True, False):
            for name in [n for n in names if n != "__builtins__" and (n[:1] == "_" and n[1:2] != "_") is private]:
                end.cleared.add(names, name)
    own = sys.__dict__
    if any(own.get(hook) is not own.get(f"__{hook}__") for hook in _HOOKS):
        for name in (*_HOOKS, *_STREAMS):
            end.cleared.add(own, name)
        end.collections[2].append(2)


def _leave():
    if _end.is_near:
        _flush_rest()
        leave(_end.status)


def _flush_rest():
    """What lies in files that libraries hold open for the script, and in the streams of a fresh interpreter."""
    for thing in gc.get_objects():
        if type(thing) in _WRITERS:
            _failure(thing)
    for stream in (getattr(sys, "__stdout__", None), getattr(sys, "__stderr__", None)):
        if stream is not None:
            _failure(stream)


def leave(status):
    """End this process with `status`, or by a signal where it is minus that; whatever happens, nothing comes after."""
    if status < 0:
        if -status not in _UNHANDLED:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)
