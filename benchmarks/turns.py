"""Is the bookkeeping of a turn flat? CPU of rollouts of 50, 200 and 800 turns through the in-process session.

A turn is: add a 4 KB tool result, check the limits, put the call on record, commit the answer. The engine is a function
that returns a prepared answer, so that what is measured is ours. `whole` is the same with the whole history handed over
each turn and matched against the tree, as the interceptor will do.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time

from rollwright.engines.function import FunctionEngine
from rollwright.harnesses import Limits, Session
from rollwright.traces import LiveTrace
from rollwright.wire import (
    Finish,
    Message,
    ModelCall,
    ModelReply,
    Stop,
    Text,
    ToolCall,
    Usage,
    tool_result,
    user,
)

from .report import Target, report


def _result(turn: int, size: int) -> Message:
    return tool_result(f"call-{turn}", f"{turn:08d}" + "x" * (size - 8))


def _answers(call: ModelCall) -> ModelReply:
    turn = len(call.messages) // 2
    message = Message("assistant", (Text(f"step {turn}"), ToolCall(f"call-{turn}", "bash", '{"command": "ls"}')))
    return ModelReply(message, Finish.TOOL_CALLS, Usage(len(call.messages), 20))


async def _held(turns: int, size: int) -> None:
    """A harness that holds its conversation, as ours do."""
    trace = LiveTrace("bench", 0)
    session = Session(FunctionEngine(_answers), trace, model="m", limits=Limits(max_turns=None))
    conversation = session.begin([user("Begin.")])
    for turn in range(turns):
        await session.sample(conversation)
        conversation.say(_result(turn, size))
    assert trace.freeze(Stop.FINISHED).turns == turns


async def _whole(turns: int, size: int) -> None:
    """A program that sends its whole history each turn."""
    trace = LiveTrace("bench", 0)
    session = Session(FunctionEngine(_answers), trace, model="m", limits=Limits(max_turns=None))
    history = [user("Begin.")]
    for turn in range(turns):
        reply = await session.sample(session.resume(history))
        assert isinstance(reply, ModelReply)
        history += [reply.message, _result(turn, size)]
    assert trace.turns == turns


def _cpu_s(kind: str, turns: int, size: int) -> float:
    gc.collect()
    began = time.process_time()
    asyncio.run((_held if kind == "held" else _whole)(turns, size))
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--turns", default="50,200,800", help="Lengths of the rollouts; the first and last are compared."
    )
    parser.add_argument("--tool-kb", type=int, default=4, help="Size of a tool result.")
    parser.add_argument("--repeats", type=int, default=7, help="The median is reported.")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    lengths = [int(part) for part in options.turns.split(",")]
    figures: dict[str, float] = {}
    cpu: dict[tuple[str, int], float] = {}
    for kind in ("held", "whole"):
        for turns in lengths:
            _cpu_s(kind, turns, options.tool_kb * 1024)
            runs = [_cpu_s(kind, turns, options.tool_kb * 1024) for _ in range(options.repeats)]
            cpu[kind, turns] = statistics.median(runs)
    short, long = lengths[0], lengths[-1]
    figures[f"ratio_{long}_over_{short}"] = cpu["held", long] / cpu["held", short]
    figures[f"cpu_s_{long}"] = cpu["held", long]
    figures["cpu_us_per_turn"] = cpu["held", long] / long * 1e6
    figures[f"whole_ratio_{long}_over_{short}"] = cpu["whole", long] / cpu["whole", short]
    figures[f"whole_cpu_s_{long}"] = cpu["whole", long]
    targets: dict[str, Target] = {}
    if (short, long) == (50, 800):
        targets = {"ratio_800_over_50": ("<=", 18.0), "cpu_s_800": ("<=", 1.0)}
    report("turns", figures, targets, as_json=options.json)


if __name__ == "__main__":
    main()
