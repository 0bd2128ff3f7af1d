# mypy: ignore-errors
# Runs under the interpreter of a script, which may be older than ours: plain Python 3.10, unannotated.
"""How a zygote forks: by the system's own call, without the work that Python does in a child after each fork.

That work takes locks apart that threads of the parent might hold, and calls what modules asked for. It touches some two
hundred pages, each of which a child then has to copy, and a zygote has no other threads. What the standard library asks
for is known and done here in few words; where anybody else has asked for something, Python forks, and it is called.
"""

import _random
import _thread
import ctypes
import os
import posix
import sys
import threading

_KNOWN = frozenset(("asyncio.events", "concurrent.futures.thread", "logging", "random", "threading"))
_HARMLESS = frozenset(("__main__", "_virtualenv", "sitecustomize", "usercustomize"))
_libc = ctypes.PyDLL(None, use_errno=True)  # Called with Python's lock held, so that the child has it, too.
_system_fork = _libc.fork
_seed = _random.Random.seed
_asked = set()
_generators = []
_register = os.register_at_fork


def suspect(at_start):
    """Modules that were there before anybody could be watched, and are not the interpreter's own, may have asked."""
    _asked.update({name.partition(".")[0] for name in at_start} - sys.stdlib_module_names - _HARMLESS)


def begin_notes():
    """Before something is loaded: note who asks to be called after a fork. A fork of the script's own calls them."""
    os.register_at_fork = posix.register_at_fork = _noted


def end_notes():
    """After something is loaded: scripts see the function that a cold run has, and a fork knows what to renew."""
    os.register_at_fork = posix.register_at_fork = _register
    module = sys.modules.get("random")
    if module is not None:
        module._inst.gauss_next = None
        _generators[:] = [module._inst]


def _noted(**hooks):
    _asked.add(sys._getframe(1).f_globals.get("__name__", ""))
    return _register(**hooks)


def fork():
    """As `os.fork`, in a process of one thread."""
    if not _asked <= _KNOWN or sys.implementation.name != "cpython":
        return os.fork()
    pid = _system_fork()
    if pid < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if pid == 0:
        # What differs from process to process: random numbers, and the number of the first thread.
        for generator in _generators:
            _seed(generator)
        threading._main_thread._native_id = _thread.get_native_id()
    return pid
