"""What does a turn cost in tokens' worth of text? Qwen3 with its own tokenizer, 40 tool turns.

`pool32_*` compares a pool of 32 renderers with one bare tokenizer, each in fresh processes. `render_over_floor` is a
full render over encoding the same text and nothing else; `render_over_peer` is the same render over that of the package
`renderers`, which gets an environment of its own. `extend_us` adds a tool result of 600 characters to a conversation,
by itself; `extend_growth_84k` is that at 84,000 tokens of prior over 500. `parse_over_decode` reads an answer of
reasoning, text and a call, over turning its ids into a string. `two_thread_speedup` is how much two threads render in
the time of one. Times are CPU times but for the last, the least of several rounds in which the sides take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from tests.vocabularies import PARCELS, cache, fetch, vocabulary
from tokenizers import Tokenizer

from rollwright.renderers import Declined, Renderer, Tape, load_engine, renderer_for
from rollwright.renderers.engine import EngineKind
from rollwright.wire import Message, Reasoning, Text, ToolCall, ToolSpec, system, tool_result, user
from rollwright.wire.arrays import Ids

from .report import Target, report

TARGETS: dict[str, Target] = {
    "pool32_time_ratio": ("<=", 1.2),
    "pool32_memory_ratio": ("<=", 1.3),
    "render_over_floor": ("<=", 1.15),
    "render_over_peer": ("<=", 0.6),
    "extend_us": ("<=", 250.0),
    "extend_us_fastokens": ("<=", 30.0),
    "extend_growth_84k": ("<=", 1.25),
    "parse_over_decode": ("<=", 2.0),
    "two_thread_speedup": (">=", 1.6),
}
PEER = ("renderers==0.1.12", "httpx", "transformers")
RESULT_CHARS = 600
_LINES = (
    "The function returns the value that was stored under this key, or raises an error if there is none.\n",
    "    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Tape:\n",
    "        return self._lexicon.encode(script.pieces)\n",
    "ERROR    tests.test_render: expected {n} tokens, got {m} instead\n",
    "-rw-r--r--  1 root root  {n} Mar  {d} 12:{d} src/package/module_{d}.py\n",
    "I will look at the file first and then decide which of the two changes is the smaller one. ",
    "However, the test at line {n} passes, so the problem must be somewhere else; let us check the parser. ",
    '{{"status": "ok", "items": [{{"id": {n}, "name": "item-{d}"}}], "next": null}}\n',
    "2024-03-{d}T08:15:{d}Z INFO server: GET /api/v1/items?id={n} 200 in {d} ms\n",
    'Traceback (most recent call last):\n  File "main.py", line {n}, in <module>\n    main()\n',
)

TOOLS = tuple(
    ToolSpec(
        name,
        f"Tool that can {name} things in the workspace.",
        {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "What to run."}, "limit": {"type": "integer"}},
            "required": ["command"],
        },
    )
    for name in ("bash", "read", "search")
)


# What is rendered.


def prose(dice: random.Random, chars: int) -> str:
    """What tools and models write: sentences, code, logs, listings."""
    lines: list[str] = []
    size = 0
    while size < chars:
        line = dice.choice(_LINES).format(n=dice.randint(100, 9999), m=dice.randint(100, 9999), d=dice.randint(10, 28))
        lines.append(line)
        size += len(line)
    return "".join(lines)[:chars]


def answer(dice: random.Random, turn: int) -> Message:
    arguments = json.dumps({"command": prose(dice, 60).strip(), "limit": turn})
    thought = Reasoning(prose(dice, 300).strip())
    return Message("assistant", (thought, Text(prose(dice, 80).strip()), ToolCall(f"call_{turn}", "bash", arguments)))


def conversation(turns: int, seed: int = 1) -> tuple[Message, ...]:
    dice = random.Random(seed)
    talk: list[Message] = [system(prose(dice, 400)), user(prose(dice, 400))]
    for turn in range(turns):
        talk += [answer(dice, turn), tool_result(f"call_{turn}", prose(dice, RESULT_CHARS))]
    return tuple(talk)


def tape_of(renderer: Renderer, tokens: int) -> Tape:
    """A tape that ends in a sampled answer, of about this length."""
    dice = random.Random(2)
    tape = renderer.render((user(prose(dice, 200)),), TOOLS)
    while True:
        said = answer(dice, 0)
        tape = tape.sample(renderer.answer(tape, said), {"call_0": "bash"})
        if len(tape) >= tokens:
            return tape
        longer = renderer.extend(tape, (tool_result("call_0", prose(dice, min(20_000, 3 * tokens))),))
        assert not isinstance(longer, Declined)
        tape = longer


# Clocks.


def cpu_s(job: Callable[[], object], repeats: int) -> float:
    began = time.thread_time()
    for _ in range(repeats):
        job()
    return (time.thread_time() - began) / repeats


def in_turns(rounds: int, *sides: Callable[[], float]) -> list[float]:
    """The least that each side needed, with the sides taking turns, so that a busy machine slows all of them."""
    runs = [[side() for side in sides] for _ in range(rounds)]
    return [min(run[at] for run in runs) for at in range(len(sides))]


# The questions.

_BUILD = """
import gc, json, sys, time
from tokenizers import Tokenizer
from rollwright.renderers import RendererPool, load_engine, renderer_for
from rollwright.renderers import engine_core, engine_fast
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
gc.collect(); before = rss(); began = time.process_time()
if sys.argv[1] == "one":
    held = Tokenizer.from_file(sys.argv[2])
else:
    engine = load_engine(sys.argv[2], kind="tokenizers")
    held = RendererPool(lambda: renderer_for(engine, model="qwen3"), size=32)
spent = time.process_time() - began
print(json.dumps([spent, rss() - before]))
"""


def pool_figures(path: Path, rounds: int) -> dict[str, float]:
    def build(what: str) -> list[float]:
        command = [sys.executable, "-c", _BUILD, what, str(path)]
        found: list[float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        return found

    runs = [(build("one"), build("pool")) for _ in range(rounds)]
    one_s, pool_s = (min(run[side][0] for run in runs) for side in (0, 1))
    one_bytes, pool_bytes = (min(run[side][1] for run in runs) for side in (0, 1))
    return {
        "pool32_time_ratio": pool_s / one_s,
        "pool32_memory_ratio": pool_bytes / one_bytes,
        "pool32_s": pool_s,
        "pool32_mb": pool_bytes / 2**20,
    }


def render_figures(renderer: Renderer, core: Tokenizer, rounds: int) -> dict[str, float]:
    talk = conversation(40)
    tape = renderer.render(talk, TOOLS)
    text = renderer.engine.decode(tape.ids)

    def floor() -> Ids:
        return np.array(core.encode_batch_fast([text], add_special_tokens=False)[0].ids, np.int32)

    assert np.array_equal(floor(), tape.ids), "the floor encodes another text"
    render_s, floor_s = in_turns(
        rounds, lambda: cpu_s(lambda: renderer.render(talk, TOOLS), 3), lambda: cpu_s(floor, 3)
    )
    return {"render_over_floor": render_s / floor_s, "render_ms": render_s * 1e3, "render_tokens": len(tape)}


def extend_s(renderer: Renderer, tape: Tape, repeats: int, seed: int) -> float:
    """Texts differ from one extension to the next, as they do in a rollout."""
    dice = random.Random(seed)
    texts = [(tool_result("call_0", prose(dice, RESULT_CHARS)),) for _ in range(repeats)]
    began = time.thread_time()
    for messages in texts:
        renderer.extend(tape, messages, TOOLS)
    return (time.thread_time() - began) / repeats


def extend_figures(path: Path, renderer: Renderer, rounds: int) -> dict[str, float]:
    short, long = tape_of(renderer, 500), tape_of(renderer, 84_000)
    seeds = iter(range(10, 10**6))
    near, far = in_turns(
        rounds,
        lambda: extend_s(renderer, short, 40, next(seeds)),
        lambda: extend_s(renderer, long, 40, next(seeds)),
    )
    figures = {"extend_us": far * 1e6, "extend_growth_84k": far / near}
    if find_spec("fastokens") is None:
        skipped("extend_us_fastokens", "fastokens is not installed")
        return figures
    fast = renderer_of(path, "fastokens")
    (fast_s,) = in_turns(rounds, lambda: extend_s(fast, long, 200, next(seeds)))
    return figures | {"extend_us_fastokens": fast_s * 1e6}


def parse_figures(renderer: Renderer, core: Tokenizer, rounds: int) -> dict[str, float]:
    dice = random.Random(5)
    tape = renderer.render((user("Go."),), TOOLS)
    said = Message(
        "assistant",
        (Reasoning(prose(dice, 3000).strip()), Text(prose(dice, 1500).strip()), *answer(dice, 0).parts[2:]),
    )
    ids = renderer.answer(tape, said)
    listed = ids.tolist()

    def parse() -> None:
        parser = renderer.parser(tape)
        parser.feed(ids)
        parser.end()

    def stream() -> None:
        parser = renderer.parser(tape)
        for at in range(len(ids)):
            parser.feed(ids[at : at + 1])
        parser.end()

    parse_s, stream_s, decode_s = in_turns(
        rounds,
        lambda: cpu_s(parse, 20),
        lambda: cpu_s(stream, 5),
        lambda: cpu_s(lambda: core.decode(listed, skip_special_tokens=False), 20),
    )
    return {"parse_over_decode": parse_s / decode_s, "parse_us_per_streamed_token": stream_s / len(ids) * 1e6}


def thread_figures(renderer: Renderer, rounds: int) -> dict[str, float]:
    talk = conversation(40, seed=3)

    def work() -> None:
        for _ in range(2):
            renderer.render(talk, TOOLS)

    def run(threads: int) -> float:
        """Seconds of wall time per render."""
        jobs = [
            threading.Thread(target=lambda: [renderer.render(talk, TOOLS) for _ in range(6)]) for _ in range(threads)
        ]
        began = time.perf_counter()
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        return (time.perf_counter() - began) / (2 * threads)

    # Short and often: on a shared machine two cores are free for a moment at best.
    one, two = in_turns(8 * rounds, lambda: run(1), lambda: run(2))
    return {"two_thread_speedup": one / two}


# The peer.

_PEER = """
import json, sys, time
from renderers import create_renderer
from renderers.configs import Qwen3RendererConfig
from transformers import PreTrainedTokenizerFast
given = json.loads(sys.stdin.readline())
tokenizer = PreTrainedTokenizerFast(tokenizer_file=given["path"], eos_token="<|im_end|>", pad_token="<|endoftext|>")
renderer = create_renderer(tokenizer, Qwen3RendererConfig())
def render():
    return renderer.render_ids(given["messages"], tools=given["tools"], add_generation_prompt=True)
print(json.dumps(render()), flush=True)
for line in sys.stdin:
    began = time.thread_time()
    for _ in range(int(line)):
        render()
    print((time.thread_time() - began) / int(line), flush=True)
"""


def peer_figures(path: Path, renderer: Renderer, rounds: int) -> dict[str, float]:
    try:
        python = peer_python()
    except (subprocess.SubprocessError, OSError) as error:
        skipped("render_over_peer", f"its environment cannot be made: {error}")
        return {}
    talk = conversation(40)
    with subprocess.Popen([python, "-c", _PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdin is not None
        assert peer.stdout is not None
        asks, answers = peer.stdin, peer.stdout

        def ask(line: str) -> str:
            asks.write(line + "\n")
            asks.flush()
            return answers.readline()

        first = ask(json.dumps({"path": str(path), "messages": plain(talk), "tools": plain_tools()}))
        if not first:
            skipped("render_over_peer", "the package does not run here")
            return {}
        if json.loads(first) != renderer.render(talk, TOOLS).ids.tolist():
            print("renderers: the peer gives other ids for this conversation", file=sys.stderr)
        ours, theirs = in_turns(rounds, lambda: cpu_s(lambda: renderer.render(talk, TOOLS), 3), lambda: float(ask("3")))
        asks.close()
    return {"render_over_peer": ours / theirs, "peer_render_ms": theirs * 1e3}


def peer_python() -> str:
    """The interpreter of the peer's own environment, made when it is first needed."""
    place = cache() / "peers" / PEER[0]
    python, mark = place / "bin" / "python", place / "ready"
    if not mark.exists():
        print(f"renderers: installing {PEER[0]} into an environment of its own", file=sys.stderr)
        venv.create(place, with_pip=True, clear=True)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check", *PEER]
        subprocess.run(command, env=environment, check=True, timeout=900, capture_output=True)
        mark.touch()
    return str(python)


def plain(talk: Sequence[Message]) -> list[dict[str, Any]]:
    """The conversation as others write it."""
    messages: list[dict[str, Any]] = []
    for message in talk:
        if message.role == "tool":
            (result,) = message.parts
            text = "".join(part.text for part in getattr(result, "content", ()))
            messages.append({"role": "tool", "content": text, "tool_call_id": getattr(result, "call_id", "")})
            continue
        written: dict[str, Any] = {"role": message.role, "content": message.text}
        if message.reasoning:
            written["reasoning_content"] = message.reasoning
        calls = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in message.tool_calls]
        if calls:
            written["tool_calls"] = [{"type": "function", "id": "x", "function": call} for call in calls]
        messages.append(written)
    return messages


def plain_tools() -> list[dict[str, Any]]:
    fields = ("name", "description", "parameters")
    return [{"type": "function", "function": {name: getattr(tool, name) for name in fields}} for tool in TOOLS]


# The answer.


def skipped(key: str, reason: str) -> None:
    print(f"renderers: {key} is skipped: {reason}", file=sys.stderr)


def renderer_of(path: Path, kind: EngineKind) -> Renderer:
    return renderer_for(load_engine(path, kind=kind), model="qwen3")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="Rounds in which the sides take turns.")
    parser.add_argument("--no-peer", action="store_true", help="Leave the comparison with another package out.")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if why := fetch(next(parcel for parcel in PARCELS if parcel.name == "qwen3")):
        sys.exit(f"renderers: the tokenizer of Qwen3 cannot be had: {why}")
    path, rounds = vocabulary("qwen3"), options.rounds
    figures = pool_figures(path, max(3, rounds // 2))
    renderer, core = renderer_of(path, "tokenizers"), Tokenizer.from_file(str(path))
    figures |= render_figures(renderer, core, rounds)
    if options.no_peer:
        skipped("render_over_peer", "it was not asked for")
    else:
        figures |= peer_figures(path, renderer, rounds)
    figures |= extend_figures(path, renderer, rounds)
    figures |= parse_figures(renderer, core, rounds)
    figures |= thread_figures(renderer, rounds)
    report("renderers", figures, {key: TARGETS[key] for key in TARGETS if key in figures}, as_json=options.json)


if __name__ == "__main__":
    main()
