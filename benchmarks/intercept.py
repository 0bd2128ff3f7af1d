"""What does it cost to carry an agent's model calls? CPU of the worker process alone: the programs and, unless it is a
function, the engine are other processes.

    python -m benchmarks.intercept --sessions 32 --turns 50 --json
    python -m benchmarks.intercept --stream --chunks 100 --json        (and with --bare)
    python -m benchmarks.intercept --sessions 1 --turns 800 --tool-kb 4 --json

The first is requests of programs that send their whole history each turn. The second is streams, in two parts. What one
costs is measured with 32 of them at once and an engine that sends as fast as it is read. What the interceptor adds is
measured while 256 are under way from an engine that sends its pieces at a steady pace, against as many that go to the
engine directly, quantile by quantile; the CPU of that part is told apart (`paced_cpu_ms_per_stream`): at that pace
most of it is the price of waking up for each piece, which `--bare`, a relay that reads nothing, pays as well.
`burst_added_p99_ms` is what is added where all 256 begin within the time between two pieces. If the worker's loop was
away for over 50 ms, stderr says for how long and where. The third is one long conversation.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Sequence

from rollwright.telemetry import run

from .doors.program import Listener, Program
from .doors.ticking import Pace, ticking
from .doors.worker import Door, Doorway, Figures, Setup, doorway
from .report import Target, report

_REPEATS, _ROUNDS = 7, 8


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
        await way.figures()
        duration_s = chunks * interval_s
        through, beside = await asyncio.gather(
            _under_load(carried, duration_s, rounds), _under_load(direct, duration_s, rounds)
        )
        seen = await way.figures()
        waves = await asyncio.gather(_wave(carried, interval_s), _wave(direct, interval_s))
        for door in doors:
            way.done(door)
    assert len(through) == len(beside) == rounds * sessions * chunks
    for stall in seen.stalls:
        print(f"the worker's loop was away for {stall}", file=sys.stderr)
    return {
        "paced_cpu_ms_per_stream": seen.cpu_s / ((rounds + 2) * sessions) * 1e3,
        "added_p50_ms": (_quantile(through, 0.5) - _quantile(beside, 0.5)) * 1e3,
        "added_p99_ms": (_quantile(through, 0.99) - _quantile(beside, 0.99)) * 1e3,
        "burst_added_p99_ms": (_quantile(waves[0], 0.99) - _quantile(waves[1], 0.99)) * 1e3,
        "direct_p50_ms": _quantile(beside, 0.5) * 1e3,
        "direct_p99_ms": _quantile(beside, 0.99) * 1e3,
        **_lag(seen),
    }


async def _wave(programs: Sequence[Listener], over_s: float) -> list[float]:
    """How late each piece is where all programs begin within `over_s`, over connections that are open."""

    async def run(number: int, program: Listener) -> list[float]:
        await asyncio.sleep(over_s * number / len(programs))
        return await program.stream()

    lanes = await asyncio.gather(*(run(number, program) for number, program in enumerate(programs)))
    return [piece for lane in lanes for piece in lane]


async def _stream_cpu(sessions: int, chunks: int, kind: str) -> dict[str, float]:
    """The median of several repeats, after one that warms everything up."""
    async with (
        ticking(Pace(chunks, 0.0)) as engine_url,
        doorway(Setup(engine_url=engine_url, rollouts=sessions, concurrent=sessions), kind) as way,
    ):
        doors = [await _opened(way) for _ in range(sessions)]
        programs = [Listener(door.url, door.key) for door in doors]
        spent = []
        for _ in range(_REPEATS + 1):
            for _ in range(_ROUNDS):
                await _pieces(programs)
            spent.append((await way.figures()).cpu_s / (_ROUNDS * sessions))
        for door in doors:
            way.done(door)
    return {"cpu_ms_per_stream": statistics.median(spent[1:]) * 1e3}


async def _pieces(programs: Sequence[Listener]) -> None:
    """One stream of each program, all at once."""
    await asyncio.gather(*(program.stream() for program in programs))


async def _under_load(programs: Sequence[Listener], duration_s: float, rounds: int) -> list[float]:
    """How late each piece is while every program has a stream. Programs begin one after the other, spread over the
    duration of a stream; their first and their last streams are there for the others, and not counted."""

    async def run(number: int, program: Listener) -> list[float]:
        await asyncio.sleep(duration_s * number / len(programs))
        streams = [await program.stream() for _ in range(rounds + 2)]
        return [piece for stream in streams[1:-1] for piece in stream]

    lanes = await asyncio.gather(*(run(number, program) for number, program in enumerate(programs)))
    return [piece for lane in lanes for piece in lane]


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
        cost = await _stream_cpu(options.sessions or 32, options.chunks, kind)
        return cost | await _streams(options.sessions or 256, options.chunks, interval_s, options.rounds, kind)
    sessions = options.sessions or 32
    if options.engine == "function":
        return await _requests(sessions, options.turns, options.tool_kb, "")
    async with ticking(Pace()) as engine_url:
        return await _requests(sessions, options.turns, options.tool_kb, engine_url)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, help="Rollouts at once: 32, and 256 paced streams.")
    parser.add_argument("--turns", type=int, default=50, help="Model calls of each rollout.")
    parser.add_argument("--tool-kb", type=float, default=1.0, help="Size of a tool result.")
    parser.add_argument("--engine", choices=("function", "relay"), default="function")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--chunks", type=int, default=100, help="Pieces of a stream.")
    parser.add_argument("--interval-ms", type=float, default=100.0, help="Time between two pieces of a stream.")
    parser.add_argument("--rounds", type=int, default=1, help="Paced streams of each rollout that are counted.")
    parser.add_argument("--bare", action="store_true", help="Measure a relay of bytes instead: the least it could be.")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = run(_measure(options))
    targets = {} if options.bare else {key: bound for key, bound in _BOUNDS.items() if key in figures}
    report("intercept", figures, targets, as_json=options.json)


if __name__ == "__main__":
    main()
