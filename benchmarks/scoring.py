"""What does an answer of the gsm8k verifier cost, cold and warm? Many calls at once, each from a box of its own.

    python -m benchmarks.scoring --calls 1000 --concurrency 128 --json

Four ways in one run, over the same answers and on the same CPU slots (as many as cores):
  cold       one process per call with byte-compiled dependencies; a sample, extrapolated by its mean
  reference  the design that was published before: one warm worker per pooled runtime, so `--concurrency` imports
  fork       `warm=True`: one import, one fork per call
  shared     `warm="shared"`: one import, calls in workers that stay
Starting is part of every way: each begins with nothing loaded. Times are wall time of the whole run over its calls.
`peak_rss_mb` is what all processes of the warm fork run take together, shared pages counted once (PSS), at its highest.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from rollwright.runtimes import CpuSlots, SubprocessRuntime, Warm
from rollwright.runtimes.provision import provision
from rollwright.runtimes.warm import keeper
from rollwright.tasks.builtin.answers import VERIFIER

from .report import Target, report

_WORKER = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("script", sys.argv[1])
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)
print("ready", flush=True)
for line in sys.stdin:
    print(script.main(json.loads(line)), flush=True)
"""
_SAMPLE = 24
_EVERY_S = 0.05
_PATIENCE_S = 600.0

Call = Callable[[SubprocessRuntime, int], Awaitable[str]]


def _args(number: int) -> list[str]:
    """Answers as they come: right ones, wrong ones, and some that say nothing."""
    gold = 7 * number % 993 + 2
    said = (f"It is {gold - 1} + 1 = {gold}.\n#### {gold}", f"So $\\boxed{{{gold + number % 2}}}$.", "I do not know.")
    return ["number", str(gold), said[number % 3]]


def _expected(number: int) -> str:
    return "1.0" if number % 3 == 0 or (number % 3 == 1 and number % 2 == 0) else "0.0"


async def _burst(boxes: list[SubprocessRuntime], calls: int, call: Call) -> float:
    """Wall seconds of `calls` calls, one at a time per box; every answer is checked."""
    numbers = iter(range(calls))

    async def drive(box: SubprocessRuntime) -> None:
        for number in numbers:
            answer = await call(box, number)
            if answer != _expected(number):
                raise SystemExit(f"call {number} answered {answer!r} and not {_expected(number)!r}")

    gc.collect()
    began = time.perf_counter()
    await asyncio.gather(*(drive(box) for box in boxes))
    return time.perf_counter() - began


def _script_call(warm: Warm) -> Call:
    async def call(box: SubprocessRuntime, number: int) -> str:
        result = await box.run_script(VERIFIER, _args(number), timeout_s=_PATIENCE_S, warm=warm)
        return result.text.strip() or repr(result)

    return call


async def _reference(boxes: list[SubprocessRuntime], calls: int, slots: CpuSlots) -> float:
    """One worker per runtime, imported on its first call and kept: the published design on our own parts."""
    python = await provision(VERIFIER)
    async with AsyncExitStack() as stack:
        workers: dict[str, object] = {}

        async def call(box: SubprocessRuntime, number: int) -> str:
            async with slots.take():
                if box.name not in workers:
                    words = [os.fspath(python), "-c", _WORKER, os.fspath(VERIFIER)]
                    process = await stack.enter_async_context(await box.open_process(words))
                    workers[box.name] = process
                    await _line(process)
                process = workers[box.name]  # type: ignore[assignment]
                await process.write(json.dumps(_args(number)).encode() + b"\n")
                return await _line(process)

        return await _burst(boxes, calls, call)


async def _line(process: object) -> str:
    line = b""
    while not line.endswith(b"\n"):
        part = await process.read()  # type: ignore[attr-defined]
        if not part:
            raise SystemExit("a worker of the reference design ended")
        line += part
    return line.decode().strip()


async def _peak_pss_mb(until: asyncio.Event) -> float:
    """The highest sum over this process and all below it; shared pages are split among their users, so counted once."""
    peak = 0.0
    while not until.is_set():
        peak = max(peak, await asyncio.to_thread(_pss_mb))
        await asyncio.sleep(_EVERY_S * 5)
    return peak


def _pss_mb() -> float:
    total, queue = 0, [os.getpid()]
    while queue:
        pid = queue.pop()
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                queue += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
        except (OSError, ValueError):
            continue
    return total / 1024


async def _measure(calls: int, concurrency: int) -> dict[str, float]:
    slots = CpuSlots()
    await provision(VERIFIER)
    async with AsyncExitStack() as stack:
        boxes = [await stack.enter_async_context(SubprocessRuntime(slots=slots)) for _ in range(concurrency)]
        sample = min(calls, _SAMPLE)
        await _burst(boxes[:2], 2, _script_call(False))  # Files are in the page cache for every way alike.
        cold_ms = await _burst(boxes, sample, _script_call(False)) / sample * 1e3
        reference_ms = await _reference(boxes, calls, slots) / calls * 1e3
        fork_ms = await _burst(boxes, calls, _script_call(True)) / calls * 1e3
        await keeper().close()
        shared_ms = await _burst(boxes, calls, _script_call("shared")) / calls * 1e3
        await keeper().close()
        # Looking at memory costs CPU, so it is looked at in a run of its own.
        over = asyncio.Event()
        looking = asyncio.create_task(_peak_pss_mb(over))
        await _burst(boxes, min(calls, 256), _script_call(True))
        over.set()
        peak_rss_mb = await looking
        await keeper().close()
    return {
        "fork_over_cold": cold_ms / fork_ms,
        "fork_over_reference": reference_ms / fork_ms,
        "shared_over_cold": cold_ms / shared_ms,
        "peak_rss_mb": peak_rss_mb,
        "cold_ms": cold_ms,
        "reference_ms": reference_ms,
        "fork_ms": fork_ms,
        "shared_ms": shared_ms,
    }


def _targets(calls: int, concurrency: int) -> dict[str, Target]:
    if concurrency != 128:
        return {}
    by_calls: dict[int, dict[str, Target]] = {
        256: {"fork_over_cold": (">=", 45.0)},
        1000: {"fork_over_cold": (">=", 60.0), "fork_over_reference": (">=", 6.0), "shared_over_cold": (">=", 250.0)},
        4000: {"fork_over_cold": (">=", 70.0), "shared_over_cold": (">=", 700.0)},
    }
    return by_calls.get(calls, {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=128, help="Boxes that ask at the same time.")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.calls < 1 or options.concurrency < 1:
        parser.error("--calls and --concurrency are 1 or more")
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(_measure(options.calls, options.concurrency))
    report("scoring", figures, _targets(options.calls, options.concurrency), as_json=options.json)


if __name__ == "__main__":
    main()
