"""Fails a test whose event loop was held for over 100 ms. Activated in conftest: `pytest_plugins = ["loopguard"]`.

Two things count as holding a loop, and neither depends on how busy the machine is:

- One callback (a handle, one step of a task) that uses over 100 ms of its thread's CPU. A loop that is not given a CPU
  uses none. Garbage collections and first imports are taken off: they belong to whoever filled the heap, and to the
  first test of the process that needs a module, not to the test at hand.
- A known blocking call made while a loop runs in the same thread: `time.sleep` for over 100 ms in one callback,
  and, however long they last, `os.system`, waiting for a child process (`Popen.wait` and `communicate`, hence
  `subprocess.run` and `check_*`), and connecting or receiving on a socket in blocking mode (hence `urlopen` and
  `requests`). Those end when somebody else likes, so a fast one is luck.

Fixtures, hypothesis and pytest itself run between callbacks and are never measured. Under uvloop, protocol callbacks
(`data_received`) run outside handles and are not measured either. `@pytest.mark.blocks_loop` opts out.
"""

import asyncio
import contextlib
import functools
import gc
import importlib
import os
import socket
import subprocess
import threading
import time
import traceback

import pytest

LIMIT_S = 0.1

_GUARD = pytest.StashKey()

_UVLOOP_ENTRANCES = ("call_soon", "call_soon_threadsafe", "call_later", "call_at", "add_reader", "add_writer")


class LoopGuard:
    """Between `install` and `remove` it watches every loop of this process and collects `offences`, as sentences."""

    def __init__(self, limit_s=LIMIT_S, thread_clock=time.thread_time):
        self.offences = []
        self._limit_s = limit_s
        self._clock = thread_clock
        self._local = threading.local()
        self._undo = contextlib.ExitStack()

    # --- CPU of one callback -----------------------------------------------------------------------------------------

    def run_callback(self, name, callback, *args):
        """Run one callback and judge it. `name` is called only for an offender."""
        local = self._local
        local.excused_s, local.slept_s = 0.0, 0.0
        began = self._clock()
        try:
            return callback(*args)
        finally:
            used_s = self._clock() - began - local.excused_s
            if used_s > self._limit_s:
                self.offences.append(f"{name()} used {used_s * 1e3:.0f} ms of CPU without letting the loop go on")
            if local.slept_s > self._limit_s:
                self.offences.append(f"{name()} slept {local.slept_s * 1e3:.0f} ms with time.sleep\n{local.where}")

    def excused(self, work, *args, **kwargs):
        """Run work whose CPU does not count. Only the outermost call measures."""
        if getattr(self._local, "excusing", False):
            return work(*args, **kwargs)
        began = self._begin_excuse()
        try:
            return work(*args, **kwargs)
        finally:
            self._end_excuse(began)

    def _begin_excuse(self):
        self._local.excusing = True
        return self._clock()

    def _end_excuse(self, began):
        self._local.excusing = False
        self._local.excused_s = getattr(self._local, "excused_s", 0.0) + self._clock() - began

    def _on_gc(self, phase, info):
        if phase == "start" and not getattr(self._local, "excusing", False):
            self._local.gc_began = self._begin_excuse()
        elif phase == "stop" and getattr(self._local, "gc_began", None) is not None:
            self._end_excuse(self._local.gc_began)
            self._local.gc_began = None

    # --- known blocking calls ----------------------------------------------------------------------------------------

    def _blocking(self, what):
        if asyncio._get_running_loop() is not None:
            self.offences.append(f"{what} was called on the event loop's thread\n{_caller()}")

    def _sleep(self, original, seconds):
        if asyncio._get_running_loop() is not None:
            self._local.slept_s = getattr(self._local, "slept_s", 0.0) + seconds
            self._local.where = _caller()
        return original(seconds)

    def _system(self, original, command):
        self._blocking("os.system")
        return original(command)

    def _wait(self, original, process, timeout=None):
        if process.poll() is None and timeout != 0:
            self._blocking("waiting for a child process")
        return original(process, timeout=timeout)

    def _communicate(self, original, process, *args, **kwargs):
        self._blocking("subprocess communicate")
        return original(process, *args, **kwargs)

    def _socket_call(self, original, sock, *args, **kwargs):
        if sock.gettimeout() != 0:
            self._blocking(f"{original.__name__} on a blocking socket")
        return original(sock, *args, **kwargs)

    # --- hooks into the interpreter ----------------------------------------------------------------------------------

    def install(self):
        self._patch(asyncio.Handle, "_run", self._run_handle)
        self._patch(time, "sleep", self._sleep)
        self._patch(os, "system", self._system)
        self._patch(subprocess.Popen, "wait", self._wait)
        self._patch(subprocess.Popen, "communicate", self._communicate)
        for method in ("connect", "recv", "recv_into"):
            self._patch(socket.socket, method, self._socket_call)
        # Where `import` and importlib.import_module both end up for a module that is not loaded yet.
        self._patch(importlib._bootstrap, "_find_and_load", self.excused)
        gc.callbacks.append(self._on_gc)
        self._undo.callback(gc.callbacks.remove, self._on_gc)
        with contextlib.suppress(ImportError):
            self._patch_uvloop(importlib.import_module("uvloop").Loop)

    def remove(self):
        self._undo.close()

    def _patch(self, owner, name, around):
        """Replace `owner.name` by a function that calls `around(original, ...)`, until `remove`."""
        own = name in vars(owner)
        original = getattr(owner, name)

        @functools.wraps(original)
        def patched(*args, **kwargs):
            return around(original, *args, **kwargs)

        setattr(owner, name, patched)
        self._undo.callback(setattr, owner, name, original) if own else self._undo.callback(delattr, owner, name)

    def _run_handle(self, original, handle):
        return self.run_callback(lambda: _name(handle._callback), original, handle)

    def _patch_uvloop(self, loop_class):
        """Its handles are C objects, so callbacks are wrapped on their way in."""
        for entrance in _UVLOOP_ENTRANCES:
            position = 0 if entrance.startswith("call_soon") else 1
            self._patch(loop_class, entrance, lambda *args, at=position, **kwargs: self._enter(at, *args, **kwargs))

    def _enter(self, at, original, loop, *args, **kwargs):
        callback = args[at]

        def judged(*values):
            return self.run_callback(lambda: _name(callback), callback, *values)

        # An argument that cannot be called is refused by the loop itself.
        judged_or_not = judged if callable(callback) else callback
        return original(loop, *args[:at], judged_or_not, *args[at + 1 :], **kwargs)


def _name(callback):
    """A task's step is named by its coroutine and the line where it stands after the step."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        coroutine = owner.get_coro()
        frame = getattr(coroutine, "cr_frame", None)
        place = f" (now at {frame.f_code.co_filename}:{frame.f_lineno})" if frame else ""
        return f"a step of {getattr(coroutine, '__qualname__', coroutine)}{place}"
    return f"the callback {getattr(callback, '__qualname__', callback)!s}"


def _caller():
    """The last few lines of the stack that are not this file."""
    stack = [line for line in traceback.extract_stack() if line.filename != __file__]
    return "".join(traceback.format_list(stack[-4:]))


def _guarded(item):
    """One phase of a test. The guard is one for the whole session, because a callback may be made in one phase and run
    in the next."""
    guard = item.config.stash[_GUARD]
    guard.offences.clear()
    outcome = yield
    offences = guard.offences[:5]
    if offences and not item.get_closest_marker("blocks_loop"):
        pytest.fail("The event loop was blocked:\n" + "\n".join(offences), pytrace=False)
    return outcome


def pytest_configure(config):
    config.addinivalue_line("markers", "blocks_loop: this test blocks the loop on purpose")
    guard = config.stash[_GUARD] = LoopGuard()
    guard.install()
    config.add_cleanup(guard.remove)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    return (yield from _guarded(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    return (yield from _guarded(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    return (yield from _guarded(item))
