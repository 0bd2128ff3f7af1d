"""What does it cost to carry an agent's model calls? CPU of the worker process alone: the programs and, unless it is a
function, the engine are other processes.

    python -m benchmarks.intercept --sessions 32 --turns 50 --json
    python -m benchmarks.intercept --stream --chunks 100 --json        (and with --bare)
    python -m benchmarks.intercept --sessions 1 --turns 800 --tool-kb 4 --json

The first is requests of programs that send their whole history each turn. The second is streams from an engine that
sends its pieces at a steady pace; while they run, as many streams go to the engine directly, and what the interceptor
adds is the difference between the two, quantile by quantile; with `--bare`, a relay that reads nothing is measured in
the interceptor's place. The third is one long conversation.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from rollwright.telemetry import run

from .doors.program import Listener, Program
from .doors.ticking import Pace, ticking
from .doors.worker import Door, Doorway, Figures, Setup, doorway
from .report import Target, report


async def _talk(way: Doorway, door: Door, turns: int, result: str) -> int:
    program = Program(door.url, door.key)
    program.say({"role": "system", "content": "You are an agent. " * 50}, {"role": "user", "content": "Begin."})
    for turn in range(turns):
        message = await program.ask()
        call = message["tool_calls"][0]["id"]
        program.say({"role": "tool", "tool_call_id": call, "content": f"{turn:08d} {result}"})
    program.close()
    way.done(door)
    return program.sent_bytes


async def _requests(sessions: int, turns: int, tool_kb: float, engine_url: str) -> dict[str, float]:
    result = ("line of output\n" * (int(tool_kb * 1024) // 15 + 1))[: int(tool_kb * 1024)]
    async with doorway(Setup(engine_url=engine_url, rollouts=sessions + 1, concurrent=sessions + 1)) as way:
        doors = [await _opened(way) for _ in range(sessions + 1)]
        await _talk(way, doors.pop(), 20, result)
        await way.figures()
        sent = await asyncio.gather(*(_talk(way, door, turns, result) for door in doors))
        seen = await way.figures()
    figures = {"cpu_ms_per_request": seen.cpu_s / (sessions * turns) * 1e3, "cpu_s": seen.cpu_s}
    if sessions == 1:
        figures = {f"cpu_s_{turns}_http": seen.cpu_s}
    return {**figures, "received_mb": sum(sent) / 2**20, **_lag(seen)}


async def _streams(sessions: int, chunks: int, interval_s: float, rounds: int, kind: str) -> dict[str, float]:
    async with (
        ticking(Pace(chunks, interval_s)) as engine_url,
        doorway(Setup(engine_url=engine_url, rollouts=sessions, concurrent=sessions), kind) as way,
    ):
        doors = [await _opened(way) for _ in range(sessions)]
        carried = [Listener(door.url, door.key) for door in doors]
        direct = [Listener(engine_url, "") for _ in doors]
        await _pieces(carried, interval_s)
        await way.figures()
        through, beside = [], []
        for _ in range(rounds):
            pieces = await asyncio.gather(_pieces(carried, interval_s), _pieces(direct, interval_s))
            through += pieces[0]
            beside += pieces[1]
        seen = await way.figures()
        for door in doors:
            way.done(door)
    assert len(through) == len(beside) == rounds * sessions * chunks
    return {
        "cpu_ms_per_stream": seen.cpu_s / (rounds * sessions) * 1e3,
        "added_p50_ms": (_quantile(through, 0.5) - _quantile(beside, 0.5)) * 1e3,
        "added_p99_ms": (_quantile(through, 0.99) - _quantile(beside, 0.99)) * 1e3,
        "direct_p50_ms": _quantile(beside, 0.5) * 1e3,
        "direct_p99_ms": _quantile(beside, 0.99) * 1e3,
        **_lag(seen),
    }


async def _pieces(programs: Sequence[Listener], interval_s: float) -> list[float]:
    """How late each piece of one stream of each program is. They begin one after the other, spread over an interval."""

    async def begin(number: int, program: Listener) -> list[float]:
        await asyncio.sleep(interval_s * number / len(programs))
        return await program.stream()

    streams = await asyncio.gather(*(begin(number, program) for number, program in enumerate(programs)))
    return [piece for stream in streams for piece in stream]


async def _opened(way: Doorway) -> Door:
    door = await asyncio.wait_for(way.doors.get(), 60)
    assert door is not None, "the worker ended before its rollouts began"
    return door


def _lag(seen: Figures) -> dict[str, float]:
    return {"lag_p99_ms": seen.lag_p99_ms, "lag_max_ms": seen.lag_max_ms, "peak_mb": seen.peak_mb}


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


_BOUNDS: dict[str, Target] = {
    "cpu_ms_per_request": ("<=", 0.8),
    "cpu_ms_per_stream": ("<=", 3.0),
    "cpu_s_800_http": ("<=", 4.0),
    "lag_p99_ms": ("<", 20.0),
    "added_p50_ms": ("<=", 1.0),
    "added_p99_ms": ("<=", 5.0),
}


async def _measure(options: argparse.Namespace) -> dict[str, float]:
    if options.stream:
        kind, interval_s = "bare" if options.bare else "worker", options.interval_ms / 1e3
        return await _streams(options.sessions or 256, options.chunks, interval_s, options.rounds, kind)
    sessions = options.sessions or 32
    if options.engine == "function":
        return await _requests(sessions, options.turns, options.tool_kb, "")
    async with ticking(Pace()) as engine_url:
        return await _requests(sessions, options.turns, options.tool_kb, engine_url)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, help="Rollouts at once: 32, or 256 streams.")
    parser.add_argument("--turns", type=int, default=50, help="Model calls of each rollout.")
    parser.add_argument("--tool-kb", type=float, default=1.0, help="Size of a tool result.")
    parser.add_argument("--engine", choices=("function", "relay"), default="function")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--chunks", type=int, default=100, help="Pieces of a stream.")
    parser.add_argument("--interval-ms", type=float, default=100.0, help="Time between two pieces of a stream.")
    parser.add_argument("--rounds", type=int, default=2, help="Streams of each rollout.")
    parser.add_argument("--bare", action="store_true", help="Measure a relay of bytes instead: the least it could be.")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = run(_measure(options))
    targets = {} if options.bare else {key: bound for key, bound in _BOUNDS.items() if key in figures}
    report("intercept", figures, targets, as_json=options.json)


if __name__ == "__main__":
    main()
