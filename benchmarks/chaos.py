"""Is anything lost, repeated or left behind when processes die? Rollouts of a real environment through a real server,
while workers, the broker, the engine and the boxes are killed and stopped at random.

Every rollout that is asked for must be accounted for exactly once: as a trace, or as an error with a reason. `notice`
is the time from a worker's death to the broker's knowledge of it, `replace` to a successor that has answered a probe.
`orphans` are processes that outlived the run, boxes that a sweep did not free, and descriptors that we hold and did not
hold before.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import secrets
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np

from rollwright.engines import EngineConfig, RelayConfig
from rollwright.engines.scripted import scripted_process
from rollwright.engines.scripted.config import ScriptedConfig
from rollwright.runtimes.sweep import sweep_all
from rollwright.serve import (
    BrokerSettings,
    EnvClient,
    EnvironmentSpec,
    Server,
    ServerLost,
    SlotSettings,
    Unserved,
    serving,
)
from rollwright.serve.environments import HOST
from rollwright.tasks import Task, load_tasks, make_taskset
from rollwright.telemetry import run

from .report import Target, report

TARGETS: dict[str, Target] = {
    "lost": ("==", 0.0),
    "duplicated": ("==", 0.0),
    "hung": ("==", 0.0),
    "notice_p99_s": ("<", 2.0),
    "replace_p99_s": ("<", 5.0),
    "orphans": ("==", 0.0),
}
MARK = "ROLLWRIGHT_CHAOS"
TASKSET = "gsm8k"
DEADLINE_S = 120.0
ENGINES = 2
DECK = (
    *(("worker", signal.SIGKILL),) * 3,
    *(("worker", signal.SIGSTOP),) * 2,
    ("broker", signal.SIGKILL),
    ("broker", signal.SIGSTOP),
    ("engine", signal.SIGKILL),
    ("engine", signal.SIGSTOP),
    ("box", signal.SIGKILL),
    ("box", signal.SIGSTOP),
)
"""Dealt in random order, so that every kind of strike comes up in every run."""
Happenings = dict[tuple[str, str, int, int], float]
"""When, by broker, what, slot and life."""


class Replica:
    """One scripted engine; another takes its place when it is killed."""

    def __init__(self) -> None:
        options = {"taskset": TASKSET, "options": {}}
        self._config = ScriptedConfig(solver="rollwright.tasks.oracle:solver", solver_options=options)
        self._process = contextlib.AsyncExitStack()
        self.port = self.pid = 0

    async def start(self) -> None:
        server = await self._process.enter_async_context(scripted_process(self._config, start_timeout_s=60.0))
        self.port, self.pid = server.port, server.pid

    async def close(self) -> None:
        await self._process.aclose()


class Engines:
    """Some engines behind one address. Each connection goes to one of them, also to one that is stopped: whether it
    answers is for the caller to find out."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._replicas = [Replica() for _ in range(ENGINES)]

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """The address."""
        await asyncio.gather(*(replica.start() for replica in self._replicas))
        door = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        try:
            async with door:
                yield f"http://127.0.0.1:{door.sockets[0].getsockname()[1]}"
        finally:
            await self.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            theirs, ours = await asyncio.open_connection("127.0.0.1", self._dice.choice(self._replicas).port)
            try:
                await asyncio.wait(
                    {asyncio.create_task(_pour(reader, ours)), asyncio.create_task(_pour(theirs, writer))},
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                ours.close()
        writer.close()

    def to_stop(self) -> int:
        """The process of one of them."""
        return self._dice.choice(self._replicas).pid

    async def kill(self) -> None:
        """End one of them and start another in its place."""
        victim = self._dice.choice(self._replicas)
        os.kill(victim.pid, signal.SIGKILL)
        await victim.close()
        await victim.start()

    async def close(self) -> None:
        await asyncio.gather(*(replica.close() for replica in self._replicas))


async def _pour(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()


class Ledger:
    """What was asked for, and what came of it."""

    def __init__(self) -> None:
        self.asked: Counter[tuple[str, int]] = Counter()
        self.came: Counter[tuple[str, int]] = Counter()
        self.reasons: Counter[str] = Counter()
        self.hung = 0

    async def ask(self, client: EnvClient, task: Task, attempt: int) -> None:
        key = task.id, attempt
        self.asked[key] += 1
        try:
            async with asyncio.timeout(2 * DEADLINE_S):
                trace = await client.run(task, attempt, timeout_s=DEADLINE_S)
            self.came[trace.key] += 1
            self.reasons[trace.failure.kind if trace.failure else "finished"] += 1
        except Unserved as error:
            self.came[key] += 1
            self.reasons[error.trouble.value] += 1
        except ServerLost:
            self.came[key] += 1
            self.reasons["server_lost"] += 1
        except TimeoutError:
            self.hung += 1


class Killer:
    """Picks a victim every so often. Whoever is stopped wakes up after a while, if it still lives."""

    def __init__(self, server: Server, client: EnvClient, engines: Engines, dice: random.Random, stop_s: float) -> None:
        self._server = server
        self._engines = engines
        self._client = client
        self._dice = dice
        self._stop_s = stop_s
        self.kills: list[tuple[float, str, int, int]] = []
        self.counts: Counter[str] = Counter()
        self._sleepers: list[asyncio.Task[None]] = []
        self._deck: list[tuple[str, signal.Signals]] = []
        self._engine_stopped_until = 0.0

    async def strike(self) -> None:
        if not self._deck:
            self._deck = self._dice.sample(DECK, len(DECK))
        what, how = self._deck.pop()
        if what == "engine" and time.monotonic() < self._engine_stopped_until:
            how = signal.SIGKILL  # With all of them stopped for so long there would be nothing to observe.
        if await self._strike(what, how):
            self.counts[f"{what}_{'killed' if how == signal.SIGKILL else 'stopped'}"] += 1

    async def _strike(self, what: str, how: signal.Signals) -> bool:
        """Whether there was somebody to hit."""
        if what == "worker":
            return await self._worker(how)
        if what == "engine" and how == signal.SIGKILL:
            await self._engines.kill()
            return True
        if what == "engine":
            self._engine_stopped_until = time.monotonic() + self._stop_s
            return self._hit(self._engines.to_stop(), how)
        boxes = _boxes() if what == "box" else [self._server.broker_pid]
        return bool(boxes) and self._hit(self._dice.choice(boxes), how)

    async def _worker(self, how: signal.Signals) -> bool:
        try:
            status = await self._client.ask("status", timeout_s=3.0)
        except (Unserved, ServerLost):
            return False
        ready = [worker for worker in status["workers"] if worker["phase"] == "ready" and worker["vitals"]]
        if not ready:
            return False
        victim = self._dice.choice(ready)
        self.kills.append((time.monotonic(), status["name"], victim["slot"], victim["life"]))
        return self._hit(int(victim["vitals"]["pid"]), how)

    def _hit(self, pid: int, how: signal.Signals) -> bool:
        try:
            os.kill(pid, how)
        except ProcessLookupError:
            return False
        if how == signal.SIGSTOP:
            self._sleepers.append(asyncio.create_task(_wake(pid, self._stop_s)))
        return True

    async def close(self) -> None:
        for sleeper in self._sleepers:
            sleeper.cancel()
        await asyncio.gather(*self._sleepers, return_exceptions=True)


async def _wake(pid: int, after_s: float) -> None:
    try:
        await asyncio.sleep(after_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _marked() -> list[int]:
    """Processes that this run started, but for those in boxes, which inherit nothing."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def _boxes() -> list[int]:
    """Programs that run in a box now: descendants of workers that carry no mark."""
    marked = set(_marked())
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) not in marked:
            with contextlib.suppress(OSError, IndexError, ValueError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent in marked:
                    found.append(int(entry.name))
    return found


def _named(pid: int) -> str:
    try:
        return f"{pid} " + Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return f"{pid}"


def _descriptors() -> set[str]:
    """What this process holds open, each under the name that the kernel has for it."""
    found = set()
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(f"{entry} {os.readlink(f'/proc/self/fd/{entry}')}")
    return found


def _after(killer: Killer, happenings: Happenings) -> tuple[list[float], list[float]]:
    """How long the broker took to know of each death, and to have a successor."""
    notices, replacements = [], []
    for at, broker, slot, life in killer.kills:
        died = happenings.get((broker, "died", slot, life))
        if died is not None:
            notices.append(max(died - at, 0.0))
        ready = happenings.get((broker, "ready", slot, life + 1))
        if ready is not None:
            replacements.append(ready - at)
    return notices, replacements


async def measure(options: argparse.Namespace) -> dict[str, float]:
    dice, ledger, happenings = random.Random(options.seed), Ledger(), Happenings()
    # With its first server a loop takes one descriptor in reserve, and keeps it.
    (await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)).close()
    engines, held = Engines(dice), _descriptors()
    tasks = load_tasks(make_taskset(TASKSET, {}))
    async with (
        engines.serving() as base_url,
        serving(_settings(base_url, options), max_restarts=1000) as server,
        EnvClient(server.address, patience_s=60.0) as client,
    ):
        killer = Killer(server, client, engines, dice, options.stop_s)
        striking = asyncio.create_task(_strike(killer, client, happenings, options))
        await _load(ledger, client, tasks, options)
        striking.cancel()
        await asyncio.gather(striking, return_exceptions=True)
        await killer.close()
        await _observe(client, happenings)
    swept = await sweep_all()
    # Processes that were told to end are given the time to do so.
    await asyncio.sleep(1.0)
    orphans = [*map(_named, _marked()), *swept.failed, *(_descriptors() - held)]
    notices, replacements = _after(killer, happenings)
    print(f"{dict(killer.counts)} {dict(ledger.reasons)} {orphans or ''}", file=sys.stderr)
    return {
        "lost": float(sum((ledger.asked - ledger.came).values()) - ledger.hung),
        "duplicated": float(sum((ledger.came - ledger.asked).values())),
        "hung": float(ledger.hung),
        "notice_p99_s": float(np.quantile(notices, 0.99)) if notices else 0.0,
        "replace_p99_s": float(np.quantile(replacements, 0.99)) if replacements else 0.0,
        "orphans": float(len(orphans)),
        "rollouts": float(ledger.asked.total()),
        "failed": float(ledger.reasons.total() - ledger.reasons["finished"]),
        "strikes": float(killer.counts.total()),
    }


def _settings(base_url: str, options: argparse.Namespace) -> BrokerSettings:
    relay = RelayConfig(
        base_url=base_url, api_key_env="ROLLWRIGHT_NO_KEY", timeout_s=5.0, connect_timeout_s=5.0, stall_timeout_s=5.0
    )
    engine = EngineConfig(kind="relay", relay=relay)
    spec = EnvironmentSpec(taskset=TASKSET, model="scripted", engine=engine, runtime=options.runtime)
    slots = SlotSettings(backoff_s=0.1, max_restarts=1000, stall_limit_s=600.0)
    return BrokerSettings(
        workers=options.workers, capacity=32, host=HOST, options=spec.encode(), redispatches=1000, slots=slots
    )


async def _load(ledger: Ledger, client: EnvClient, tasks: list[Task], options: argparse.Namespace) -> None:
    until = time.monotonic() + options.minutes * 60
    numbers = iter(range(10**9))

    async def seat() -> None:
        while time.monotonic() < until:
            number = next(numbers)
            await ledger.ask(client, tasks[number % len(tasks)], number // len(tasks))

    await asyncio.gather(*(seat() for _ in range(options.concurrency)))


async def _strike(killer: Killer, client: EnvClient, happenings: Happenings, options: argparse.Namespace) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(options.every_s)
            await _observe(client, happenings)
            await killer.strike()


async def _observe(client: EnvClient, happenings: Happenings) -> None:
    """The broker's memory dies with it, so it is read often."""
    with contextlib.suppress(Unserved, ServerLost):
        status = await client.ask("status", timeout_s=3.0)
        for one in status["happenings"]:
            happenings[status["name"], one["what"], one["slot"], one["life"]] = one["at"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=48)
    parser.add_argument("--every-s", type=float, default=2.0, help="Between two strikes.")
    parser.add_argument("--stop-s", type=float, default=90.0, help="How long a stopped process stays stopped.")
    parser.add_argument("--runtime", default="sandbox")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ[MARK] = secrets.token_hex(8)
    report("chaos", run(measure(options)), TARGETS, as_json=options.json)


if __name__ == "__main__":
    main()
