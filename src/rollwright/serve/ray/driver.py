"""The process that speaks with Ray: `python -m rollwright.serve.ray.driver PARENT`, a child of the broker.

It is not the broker itself, because Ray's client brings threads and garbage that a loop which only carries must not
have. One plain loop: orders come in on stdin, supervisors are asked how they are, what follows goes out on stdout. When
it ends, its actors end with it, for none is detached, and so do their workers.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections import deque
from typing import Any

import msgspec
import ray
from ray.exceptions import ActorDiedError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeLabelSchedulingStrategy, NotIn

from rollwright.engines.child import belong_to
from rollwright.serve.launching import WorkerOrder

from .lines import Ended, Kill, Lines, Said, Spent, Start, State, ToDriver, Want, line
from .settings import RaySettings
from .slices import Report, Slice, Slices
from .supervisor import Supervisor

ORDER = "ROLLWRIGHT_RAY_ORDER"
ASK_S = 0.2
STATE_S = 0.1
KNOCK_S = 10.0
SUSPECT_S = 60.0
"""A node whose supervisor fell silent gets no other for so long; by then Ray knows whether it lives."""
MIB = 2**20
CONTROL = "control"


class Driver:
    def __init__(self, settings: RaySettings, out: int) -> None:
        self._settings = settings
        self._out = out
        self._slices = Slices(settings)
        self._actors: dict[int, Any] = {}
        self._asked: dict[int, Any] = {}
        self._waiting: deque[WorkerOrder] = deque()
        self._wanted = self._started = 0
        self._next_state = 0.0
        self._make: Any = ray.remote(concurrency_groups={CONTROL: 2})(Supervisor)

    def run(self, orders: Lines, descriptor: int) -> None:
        """Until the broker hangs up."""
        while not orders.ended:
            select.select([descriptor], [], [], STATE_S / 2)
            for said in orders.read():
                self._obey(said)
            self.turn(time.monotonic())

    def _obey(self, said: ToDriver) -> None:
        if isinstance(said, Want):
            self._wanted = said.workers
        elif isinstance(said, Start):
            self._started += 1
            self._waiting.append(said.order)
        elif isinstance(said, Kill):
            self._kill(said)

    def turn(self, now: float) -> None:
        self._hear(now)
        for slice in self._slices.silent(now):
            self._give_up(slice, f"node {slice.node[:8]} fell silent for {now - slice.heard_at:.1f} s", now)
        self._resize(now)
        self._place(now)
        for slice in self._slices.all:
            self._ask(slice, now)
        if self._slices.spent:
            self._say(Spent(f"no slice of the Ray cluster is left; the last: {self._slices.last_words}"))
        if now >= self._next_state:
            self._next_state = now + STATE_S
            room = self._slices.room(now) - len(self._waiting)
            self._say(State(max(room, 0), self._started, self._slices.computing(now)))

    def _resize(self, now: float) -> None:
        added, gone = self._slices.resize(self._wanted, now)
        for slice in added:
            self._actors[slice.number] = self._supervisor(now)
        for slice in gone:
            self._asked.pop(slice.number, None)
            ray.kill(self._actors.pop(slice.number))

    def _supervisor(self, now: float) -> Any:
        """A new one, wherever Ray finds room for a slice, now or when a node joins."""
        settings = self._settings
        return self._make.options(
            num_cpus=settings.slice_workers * settings.worker_cpus,
            memory=settings.slice_workers * settings.worker_memory_mb * MIB,
            max_restarts=settings.max_restarts,
            # A call that was lost is ours to repeat: attempts have names, and Ray's repeats would not.
            max_task_retries=0,
            scheduling_strategy=self._elsewhere(now),
        ).remote()

    def _elsewhere(self, now: float) -> Any:
        """Not on a node that is suspected to be dead. A wish and no condition: it may be alive after all, and the only
        one with room."""
        suspects = [node for node, since in self._slices.suspects.items() if now - since < SUSPECT_S]
        if not suspects:
            return "SPREAD"
        return NodeLabelSchedulingStrategy(hard={}, soft={"ray.io/node-id": NotIn(*suspects)})

    def _give_up(self, slice: Slice, words: str, now: float) -> None:
        for exit in self._slices.lost(slice, words, now):
            self._say(Ended(exit.slot, exit.life, exit.words))
        self._asked.pop(slice.number, None)
        # Without another life of its own: what Ray would start again later, a new one replaces now.
        ray.kill(self._actors[slice.number], no_restart=True)
        if not slice.spent:
            self._actors[slice.number] = self._supervisor(now)

    def _ask(self, slice: Slice, now: float) -> None:
        """Once at a time: a supervisor that does not answer is not asked again, and its silence is counted."""
        if slice.number in self._asked or slice.spent or now - slice.asked_at < ASK_S:
            return
        slice.asked_at = now
        report = self._actors[slice.number].report.options(concurrency_group=CONTROL)
        self._asked[slice.number] = report.remote(slice.seen)

    def _hear(self, now: float) -> None:
        asked = {ref: number for number, ref in self._asked.items()}
        if not asked:
            return
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=0)
        for ref in answered:
            number = asked[ref]
            del self._asked[number]
            (slice,) = [slice for slice in self._slices.all if slice.number == number]
            self._answered(slice, ref, now)

    def _answered(self, slice: Slice, ref: Any, now: float) -> None:
        try:
            report = msgspec.json.decode(ray.get(ref, timeout=1.0), type=Report)
        except RayActorError as error:
            # Ray starts it again by itself, unless it has given it up; until it speaks, its silence is counted.
            if isinstance(error, ActorDiedError):
                self._give_up(slice, f"Ray gave its supervisor up: {str(error).strip().splitlines()[0]}", now)
            return
        for exit in self._slices.heard(slice, report, now):
            self._say(Ended(exit.slot, exit.life, exit.words))

    def _place(self, now: float) -> None:
        while self._waiting:
            order = self._waiting[0]
            slice = self._slices.place((order.slot, order.life), now)
            if slice is None:
                return
            self._waiting.popleft()
            self._actors[slice.number].start.remote(msgspec.json.encode(order).decode())

    def _kill(self, said: Kill) -> None:
        waiting = [order for order in self._waiting if (order.slot, order.life) == (said.slot, said.life)]
        for order in waiting:
            self._waiting.remove(order)
            self._say(Ended(order.slot, order.life, "it was ended before it was started"))
        slice = self._slices.holder((said.slot, said.life))
        if slice is not None:
            kill = self._actors[slice.number].kill.options(concurrency_group=CONTROL)
            kill.remote(said.slot, said.life)

    def _say(self, said: Said) -> None:
        # Blocks while the broker does not read, which is while it does not turn; then nobody here has work either.
        data = line(said)
        while data:
            data = data[os.write(self._out, data) :]


def _knock(cluster: str) -> None:
    """Ray tries for over a minute where nobody listens; this tells at once."""
    host, colon, port = cluster.rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=KNOCK_S).close()


def main() -> None:
    belong_to(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    settings = msgspec.json.decode(os.environ.pop(ORDER), type=RaySettings)
    # Whatever Ray prints is no message of ours.
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        _knock(settings.cluster)
        ray.init(address=settings.cluster, log_to_driver=False, configure_logging=False)
    except (OSError, RayError, RuntimeError, ValueError) as error:
        os.write(out, line(Spent(f"the Ray cluster at {settings.cluster!r} cannot be reached: {error}")))
        sys.exit(1)
    try:
        Driver(settings, out).run(Lines(0, ToDriver), 0)
    except Exception as error:  # The border to Ray: whatever broke is the driver's last word.
        os.write(out, line(Spent(f"the Ray driver broke: {type(error).__name__}: {error}")))
        raise
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
