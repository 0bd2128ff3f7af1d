# mypy: ignore-errors
# Runs under the interpreter of a script, which may be older than ours: plain Python 3.10, unannotated.
"""How a forked child runs its script and ends: as an interpreter ends, without taking the whole heap apart.

A cold interpreter joins threads, runs `atexit`, flushes, and frees its modules, which closes files that were left open.
All of that happens here too, for what the script made; what the zygote had loaded is let go with the process.
"""

import atexit
import gc
import io
import os
import signal
import sys
import threading
import types

_signals = {}
_registered = []
_UNHANDLED = (signal.SIGKILL, signal.SIGSTOP)
_NO_CODE = compile("", "", "exec")


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
    """What is done at the end of a child and leaves no trace. Threads and registered functions do not come twice."""
    main = types.ModuleType("__main__")
    exec(_NO_CODE, main.__dict__)
    _flush_all(main)


def run_and_finish(code, main):
    """Run `code` in the module `main`; the status for `leave`, minus a signal's number to die by."""
    status = 0
    try:
        exec(code, main.__dict__)
    except BaseException as error:
        status = _told(error)
    return _finish(main, status)


def _told(error):
    """Tell how the script failed, in the words of a cold interpreter, and the status that goes with it."""
    if isinstance(error, SystemExit):
        return _exit_status(error.code)
    # The first frame is the line above that runs the code; a cold run does not have it.
    trail = error.__traceback__.tb_next if error.__traceback__ else None
    error.__traceback__ = trail
    _flush(sys.stdout)
    try:
        sys.excepthook(type(error), error, trail)
    except SystemExit as exit_:
        return _exit_status(exit_.code)
    except BaseException as failed:
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(failed), failed, failed.__traceback__.tb_next)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, trail)
    return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1


def _exit_status(code):
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -(1 << 31) <= code < (1 << 32) else 0xFF
    _flush(sys.stdout)
    try:
        sys.stderr.write(f"{code}\n")
    except Exception:  # A stderr that the script closed or replaced hears nothing; the status says it all.
        return 1
    return 1


def _finish(main, status):
    threading._shutdown()
    atexit._run_exitfuncs()
    return 120 if not _flush_all(main) and status >= 0 else status


def _flush_all(main):
    """Whether nothing of the output was lost."""
    broken = _cannot_flush(sys.stdout)
    _flush(sys.stderr)
    _release(main)
    for stream in (sys.__stdout__, sys.__stderr__):
        _flush(stream)
    return not broken


def _cannot_flush(stream):
    """Whether output was lost, which is told in the words of a cold interpreter."""
    try:
        if stream is not None and not stream.closed:
            stream.flush()
    except BaseException as error:
        sys.stderr.write(f"Exception ignored in: {stream!r}\n{type(error).__qualname__}: {error}\n")
        return True
    return False


def _release(main):
    """Free the script's names in the order of a cold interpreter, so that files close and finalizers speak."""
    names = main.__dict__
    for private in (True, False):
        for name in [n for n in names if n != "__builtins__" and (n[:1] == "_" and n[1:2] != "_") is private]:
            names[name] = None
    gc.collect()
    for thing in gc.get_objects():
        if isinstance(thing, (io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)) and type(thing) in _FLUSHED:
            _flush(thing)


_FLUSHED = (io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)


def _flush(stream):
    try:
        if stream is not None and not stream.closed:
            stream.flush()
    except BaseException:
        return False
    return True


def leave(status):
    """End this process with `status`, or by a signal where it is minus that; whatever happens, nothing comes after."""
    if status < 0:
        if -status not in _UNHANDLED:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)
