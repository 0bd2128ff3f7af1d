"""What does an answer of the gsm8k verifier cost, cold and warm? Many calls at once, each from a box of its own.

    python -m benchmarks.scoring --calls 1000 --concurrency 128 --json

Four ways in one run, over the same answers and on the same CPU slots (as many as cores):
  cold       one process per call with byte-compiled dependencies; a sample, extrapolated by its mean
  reference  the design that was published before: one warm worker per pooled runtime, so `--concurrency` imports
  fork       `warm=True`: one import, one fork per call
  shared     `warm="shared"`: one import, calls in workers that stay
Starting is part of every way: each begins with nothing loaded. The verifier's warmup yields, so that a zygote serves
after the first step; the others, which only symbolic answers need, are not run while such calls wait. Times are wall
time of the whole run over its calls; `..._cpu_ms` is the CPU time of all processes of that run, ours included, over the
same calls, but for that of shared workers, which end with their zygote and are counted by nobody.
Machines are shared, and what a process costs changes within a minute. So cold, fork and shared are run in turn, round
by round; each figure is the median over the rounds, and a ratio is the median of the ratios within them. The reference,
which takes as long as all the rest, is run once.
`peak_rss_mb` is what all processes of the warm fork run take together, shared pages counted once (PSS), at its highest.

The answers are such as come from gsm8k: of twenty, fourteen end in the right number, three in a wrong one, and one each
says it as a decimal, as a fraction, or not at all. `parsed_share` is the part of them that reaches math-verify's
parser, counted in the verifier; `fork_parsed_ms` is a forked call, nothing started, where all of them do.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import statistics
import subprocess
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
_COUNTER = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("script", sys.argv[1])
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)
parse, parsed = script.parse, set()
for number, argv in enumerate(json.load(sys.stdin)):
    script.parse = lambda *args, **kwargs: parsed.add(number) or parse(*args, **kwargs)
    script.main(argv)
print(len(parsed))
"""
_SAMPLE = 24
_ROUNDS = {256: 5}
"""By calls; all others take longer, and have three."""
_PARSED_SAMPLE = 200
_EVERY_S = 0.05
_PATIENCE_S = 600.0

Call = Callable[[SubprocessRuntime, list[str]], Awaitable[str]]


_STEPS = "First we add up what each of them has: {0} and {1} make {2}. Then we take half of that, which is {3}. " * 3
_PARSED = ("decimal", "fraction")
_KINDS = (*["right"] * 6, "decimal", *["wrong"] * 2, *["right"] * 4, "fraction", *["right"] * 4, "wrong", "none")


def _said(kind: str, gold: int) -> str:
    steps = _STEPS.format(gold + 3, gold - 3, 2 * gold, gold)
    return {
        "right": f"{steps}\n#### {gold:,}",
        "wrong": f"{steps}\n#### {gold + 5}",
        "decimal": f"{steps}\nThat is ${gold}.00",
        "fraction": f"{steps}\n$\\boxed{{\\frac{{{2 * gold}}}{{2}}}}$",
        "none": "I do not know.",
    }[kind]


def _asked(number: int, kinds: tuple[str, ...]) -> tuple[list[str], str]:
    """The words of a call, and its answer."""
    kind, gold = kinds[number % len(kinds)], 7 * number % 1993 + 2
    return ["number", str(gold), _said(kind, gold)], "0.0" if kind in ("wrong", "none") else "1.0"


async def _burst(boxes: list[SubprocessRuntime], calls: int, call: Call, kinds: tuple[str, ...] = _KINDS) -> float:
    """Wall seconds of `calls` calls, one at a time per box; every answer is checked."""
    questions = iter([_asked(number, kinds) for number in range(calls)])

    async def drive(box: SubprocessRuntime) -> None:
        for words, expected in questions:
            answer = await call(box, words)
            if answer != expected:
                raise SystemExit(f"{words} was answered with {answer!r} and not {expected!r}")

    gc.collect()
    began = time.perf_counter()
    await asyncio.gather(*(drive(box) for box in boxes))
    return time.perf_counter() - began


def _script_call(warm: Warm) -> Call:
    async def call(box: SubprocessRuntime, words: list[str]) -> str:
        result = await box.run_script(VERIFIER, words, timeout_s=_PATIENCE_S, warm=warm)
        return result.text.strip() or repr(result)

    return call


async def _reference(boxes: list[SubprocessRuntime], calls: int, slots: CpuSlots) -> float:
    """One worker per runtime, imported on its first call and kept: the published design on our own parts."""
    python = await provision(VERIFIER)
    async with AsyncExitStack() as stack:
        workers: dict[str, object] = {}

        async def call(box: SubprocessRuntime, words: list[str]) -> str:
            async with slots.take():
                if box.name not in workers:
                    program = [os.fspath(python), "-c", _WORKER, os.fspath(VERIFIER)]
                    process = await stack.enter_async_context(await box.open_process(program))
                    workers[box.name] = process
                    await _line(process)
                process = workers[box.name]  # type: ignore[assignment]
                await process.write(json.dumps(words).encode() + b"\n")
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


async def _parsed_share(calls: int) -> float:
    """The part of the answers that the verifier hands to math-verify's parser."""
    words = [os.fspath(await provision(VERIFIER)), "-c", _COUNTER, os.fspath(VERIFIER)]
    asked = json.dumps([_asked(number, _KINDS)[0] for number in range(calls)])
    done = await asyncio.to_thread(subprocess.run, words, input=asked, capture_output=True, text=True, check=True)
    return int(done.stdout) / calls


def _cpu_s() -> float:
    """CPU time of this process and of all that ended below it."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


async def _per_call(way: Awaitable[float], calls: int) -> tuple[float, float]:
    """Milliseconds of wall time and of CPU time per call; what the way has loaded ends with it."""
    began = _cpu_s()
    wall_s = await way
    await keeper().close()
    return wall_s / calls * 1e3, (_cpu_s() - began) / calls * 1e3


async def _peak_mb(boxes: list[SubprocessRuntime], calls: int) -> float:
    """Looking at memory costs CPU, so it is looked at in a run of its own."""
    over = asyncio.Event()
    looking = asyncio.create_task(_peak_pss_mb(over))
    await _burst(boxes, min(calls, 256), _script_call(True))
    over.set()
    return await looking


async def _fork_parsed_ms(boxes: list[SubprocessRuntime], calls: int) -> float:
    sample = min(calls, _PARSED_SAMPLE)
    return await _burst(boxes, sample, _script_call(True), _PARSED) / sample * 1e3


async def _round(boxes: list[SubprocessRuntime], calls: int, sample: int) -> dict[str, float]:
    cold_ms, cold_cpu_ms = await _per_call(_burst(boxes, sample, _script_call(False)), sample)
    fork_ms, fork_cpu_ms = await _per_call(_burst(boxes, calls, _script_call(True)), calls)
    shared_ms, shared_cpu_ms = await _per_call(_burst(boxes, calls, _script_call("shared")), calls)
    return {
        "fork_over_cold": cold_ms / fork_ms,
        "shared_over_cold": cold_ms / shared_ms,
        "cold_ms": cold_ms,
        "fork_ms": fork_ms,
        "shared_ms": shared_ms,
        "cold_cpu_ms": cold_cpu_ms,
        "fork_cpu_ms": fork_cpu_ms,
        "shared_cpu_ms": shared_cpu_ms,
    }


async def _measure(calls: int, concurrency: int) -> dict[str, float]:
    slots = CpuSlots()
    await provision(VERIFIER)
    async with AsyncExitStack() as stack:
        boxes = [await stack.enter_async_context(SubprocessRuntime(slots=slots)) for _ in range(concurrency)]
        sample = min(calls, _SAMPLE)
        await _burst(boxes[:2], 2, _script_call(False))  # Files are in the page cache for every way alike.
        rounds = [await _round(boxes, calls, sample) for _ in range(_ROUNDS.get(calls, 3))]
        reference_ms, reference_cpu_ms = await _per_call(_reference(boxes, calls, slots), calls)
        peak_rss_mb = await _peak_mb(boxes, calls)
        fork_parsed_ms = await _fork_parsed_ms(boxes, calls)
        await keeper().close()
    figures = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    return {
        **figures,
        "fork_over_cold_least": min(one["fork_over_cold"] for one in rounds),
        "fork_over_reference": reference_ms / figures["fork_ms"],
        "peak_rss_mb": peak_rss_mb,
        "reference_ms": reference_ms,
        "reference_cpu_ms": reference_cpu_ms,
        "fork_parsed_ms": fork_parsed_ms,
        "parsed_share": await _parsed_share(calls),
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
