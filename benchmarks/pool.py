"""What does a box cost? Cold starts, leases of pooled boxes with verified resets, and what a killed owner leaves.

A lease here is used as a rollout would use it: it looks for what others left, writes into its workspace and HOME, and
leaves a process behind. `leaks` counts, after SIGKILL of a process that held leases and a sweep: processes, journal
entries, directories and control groups that are left, and leases that saw anything of another.
`reset_p50_ms` is the median of the times themselves, from the beginning of a reset to the end of the look that proves
it, with a box per core in use: a reset shares the cores with what runs in the other boxes. `single_reset_p50_ms` is the
same with one box in use at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from rollwright.runtimes import PoolConfig, Runtime, RuntimeConfig, RuntimePool, make_runtime, runtime_config
from rollwright.runtimes.journal import Journal
from rollwright.runtimes.state import BoxState
from rollwright.runtimes.sweep import sweep_all
from rollwright.telemetry import run

from .report import Target, report

_USE = """
ls -A . "$HOME" "${TMPDIR-/tmp}" | grep -v ":$"
echo x | tee file "$HOME/file" > /dev/null
sleep 600 > /dev/null 2>&1 &
"""
_HELD = 8


async def _side_by_side(width: int, count: int, work: Callable[[], Awaitable[None]]) -> float:
    """Do `work` `count` times, `width` at once; the seconds it took."""
    left = iter(range(count))

    async def lane() -> None:
        for _ in left:
            await work()

    began = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(width)))
    return time.perf_counter() - began


async def _cold(config: RuntimeConfig, width: int, count: int) -> tuple[list[float], float]:
    """Start `count` boxes, `width` at once: seconds of each start, and of all."""
    boxes: list[Runtime] = []
    starts: list[float] = []

    async def start() -> None:
        box = make_runtime(config)
        began = time.perf_counter()
        await box.start()
        starts.append(time.perf_counter() - began)
        boxes.append(box)

    try:
        wall = await _side_by_side(width, count, start)
    finally:
        await _side_by_side(width, len(boxes), lambda: boxes.pop().stop())
    return starts, wall


async def _leases(config: RuntimeConfig, count: int, width: int) -> dict[str, float]:
    claims: list[float] = []
    resets: list[float] = []
    seen_of_others = 0

    # No more boxes than lanes: each is used or reset, and so no more resets than cores go on at once.
    limits = PoolConfig(max_boxes=width, min_warm=width, max_uses=0)
    async with RuntimePool(limits, make=lambda wanted: _timed(make_runtime(wanted), resets)) as pool:
        pool.expect(config)

        async def use() -> None:
            nonlocal seen_of_others
            await _until(lambda: pool.stats().idle > 0)
            began = time.perf_counter()
            lease = pool.lease(config)
            async with lease as box:
                claims.append(time.perf_counter() - began)
                seen_of_others += bool((await box.run(["sh", "-c", _USE])).stdout.strip())

        await _side_by_side(width, 4 * width, use)
        claims.clear()
        resets.clear()
        await _side_by_side(width, count, use)
        await _until(lambda: not pool.stats().resetting)
        stats = pool.stats()
    print(f"pool   {stats}", file=sys.stderr)
    return {
        "lease_hit_p50_ms": _quantile(claims, 0.5) * 1e3,
        "lease_hit_p99_ms": _quantile(claims, 0.99) * 1e3,
        "reset_p50_ms": _quantile(resets, 0.5) * 1e3,
        "reset_p99_ms": _quantile(resets, 0.99) * 1e3,
        "leases": float(stats.hits + stats.misses),
        "boxes_made": float(stats.creates),
        "quarantines": float(stats.quarantines),
        "leaks": float(seen_of_others),
    }


def _timed(box: Runtime, resets: list[float]) -> Runtime:
    """`box`, which notes how long its resets take with the looks that follow them."""
    reset, inspect = box.reset, box.inspect
    began: list[float] = []

    async def noted_reset() -> None:
        began.append(time.perf_counter())
        await reset()

    async def noted_inspect() -> BoxState:
        seen = await inspect()
        while began:
            resets.append(time.perf_counter() - began.pop())
        return seen

    box.reset, box.inspect = noted_reset, noted_inspect  # type: ignore[method-assign]
    return box


async def _until(happened: Callable[[], bool], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not happened():
            # Not more often: asking costs as much as a tenth of what is measured.
            await asyncio.sleep(0.005)


async def _left_after_a_kill(kind: str) -> int:
    """Kill a process that holds leases with programs in them, sweep, and count what is left."""
    with tempfile.TemporaryDirectory(prefix="rollwright-bench-") as top:
        place = Path(top)
        (place / "tmp").mkdir()
        token = f"600.{random.randrange(10**8, 10**9)}"
        env = {**os.environ, "ROLLWRIGHT_CACHE_DIR": str(place / "cache"), "TMPDIR": str(place / "tmp")}
        argv = [sys.executable, "-m", "benchmarks.pool", "--kind", kind, "--hold", token]
        owner = await asyncio.create_subprocess_exec(*argv, env=env, stdout=asyncio.subprocess.PIPE)
        try:
            assert owner.stdout is not None
            async with asyncio.timeout(60):
                assert (await owner.stdout.readline()).strip() == b"held"
            journal = Journal(place / "cache" / "boxes")
            names = [entry.name for entry in journal.entries()]
            assert len(names) >= _HELD, names
            await _until(lambda: _programs(token) >= _HELD)
        finally:
            owner.send_signal(signal.SIGKILL)
            await owner.wait()
        swept = await sweep_all(journal)
        print(f"sweep   freed {len(swept.freed)}, failed {dict(swept.failed)}", file=sys.stderr)
        left = len(list(journal.entries())) + len(list((place / "tmp").iterdir())) + _control_groups(names)
        return left + _programs(token)


async def _hold(config: RuntimeConfig, token: str) -> None:
    """Lease boxes, leave programs running in them, say so, and wait to be killed."""
    async with RuntimePool() as pool:
        for _ in range(_HELD):
            box = await pool.lease(config).__aenter__()
            await box.run(["sh", "-c", f"setsid sleep {token} > /dev/null 2>&1 < /dev/null &"])
        print("held", flush=True)
        await asyncio.sleep(600)


def _programs(token: str) -> int:
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += path.read_bytes().split(b"\0")[:2] == [b"sleep", token.encode()]
        except OSError:
            continue
    return found


def _control_groups(names: list[str]) -> int:
    top = Path("/sys/fs/cgroup")
    return sum(any(name in found.name for name in names) for found in top.glob("*/*")) + sum(
        any(name in found.name for name in names) for found in top.glob("*/*/*")
    )


def _quantile(values: list[float], q: float) -> float:
    return sorted(values)[min(int(q * len(values)), len(values) - 1)]


async def _measure(options: argparse.Namespace) -> dict[str, float]:
    config = runtime_config(options.kind)
    cores = os.cpu_count() or 1
    await _cold(config, cores, 2 * cores)
    starts, _ = await _cold(config, cores, options.starts)
    _, wall = await _cold(config, 64, options.starts)
    leased = await _leases(config, options.leases, cores)
    single = await _leases(config, options.leases // 2, 1)
    leaks = leased.pop("leaks") + single["leaks"] + await _left_after_a_kill(options.kind)
    return {
        f"{options.kind}_cold_p50_ms": _quantile(starts, 0.5) * 1e3,
        f"{options.kind}_cold_p99_ms": _quantile(starts, 0.99) * 1e3,
        f"{options.kind}_starts_per_s": options.starts / wall,
        **leased,
        "single_reset_p50_ms": single["reset_p50_ms"],
        "single_reset_p99_ms": single["reset_p99_ms"],
        "leaks": leaks,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", default="sandbox", help="A kind of box that runs on this machine.")
    parser.add_argument("--leases", type=int, default=1000)
    parser.add_argument("--starts", type=int, default=256)
    parser.add_argument("--hold", default="", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.hold:
        run(_hold(runtime_config(options.kind), options.hold))
        return
    figures = run(_measure(options))
    targets: dict[str, Target] = {
        "lease_hit_p50_ms": ("<", 1.0),
        f"{options.kind}_cold_p50_ms": ("<", 10.0),
        f"{options.kind}_cold_p99_ms": ("<", 50.0),
        f"{options.kind}_starts_per_s": (">=", 120.0),
        "reset_p50_ms": ("<", 5.0),
        "leaks": ("==", 0.0),
    }
    report("pool", figures, targets, as_json=options.json)


if __name__ == "__main__":
    main()
