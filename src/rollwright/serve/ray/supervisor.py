"""The actor that keeps the workers of one slice of a node. They are its child processes and die with it.

Its calls only leave notes for a thread that does the work, so that an answer to "are you there?" never waits for a
process to start. What is passed in and out is text: nothing of ours is pickled, and a restart needs nothing but a
number.
"""

from __future__ import annotations

import queue
import secrets
import threading
from collections import deque

import msgspec
import ray

from rollwright.serve.launching import Exit, WorkerOrder
from rollwright.serve.local import LocalLauncher

from .slices import Key, Report

TURN_S = 0.05
COMPUTING_EVERY = 5
"""Turns between two looks at who computes; shorter spans do not show in the kernel's clock ticks."""
MAX_NOTES = 10_000


class Keeper:
    """A thread with a launcher of local processes. The kernel ends a child with the thread that made it, so one thread
    makes all of them and lives as long as the process."""

    def __init__(self) -> None:
        self._launcher = LocalLauncher()
        self._notes: queue.Queue[WorkerOrder | Key] = queue.Queue(MAX_NOTES)
        self._running: set[Key] = set()
        self._ended: deque[tuple[int, Exit]] = deque()
        self._computing: tuple[Key, ...] = ()
        self._next = 0
        self._turns = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._keep, name="rollwright-keeper", daemon=True).start()

    def start(self, order: WorkerOrder) -> None:
        self._notes.put_nowait(order)

    def kill(self, slot: int, life: int) -> None:
        self._notes.put_nowait((slot, life))

    def told(self, seen: int) -> tuple[tuple[tuple[int, Exit], ...], tuple[Key, ...]]:
        """Who ended after number `seen`, and who computes."""
        with self._lock:
            while self._ended and self._ended[0][0] <= seen:
                self._ended.popleft()
            return tuple(self._ended), self._computing

    def _keep(self) -> None:
        while True:
            try:
                self._obey(self._notes.get(timeout=TURN_S))
            except queue.Empty:
                self._look()

    def _obey(self, note: WorkerOrder | Key) -> None:
        if not isinstance(note, WorkerOrder):
            self._launcher.kill(*note)
            return
        key = (note.slot, note.life)
        try:
            self._launcher.start(note)
        except OSError as error:
            self._note_end(Exit(*key, f"it could not be started: {error}"))
        else:
            self._running.add(key)

    def _look(self) -> None:
        for exit in self._launcher.exits():
            self._running.discard((exit.slot, exit.life))
            self._note_end(exit)
        self._turns += 1
        if self._turns % COMPUTING_EVERY == 0:
            self._computing = tuple(key for key in self._running if self._launcher.computing(*key))

    def _note_end(self, exit: Exit) -> None:
        with self._lock:
            self._next += 1
            self._ended.append((self._next, exit))


class Supervisor:
    """`kill` and `report` are called in the control group, whose threads are not those of `start`."""

    def __init__(self) -> None:
        self._name = secrets.token_hex(8)
        self._keeper = Keeper()

    def start(self, order: str) -> None:
        self._keeper.start(msgspec.json.decode(order, type=WorkerOrder))

    def kill(self, slot: int, life: int) -> None:
        self._keeper.kill(slot, life)

    def report(self, seen: int) -> str:
        ended, computing = self._keeper.told(seen)
        node = ray.get_runtime_context().get_node_id()
        return msgspec.json.encode(Report(self._name, node, ended, computing)).decode()
