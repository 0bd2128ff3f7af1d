"""Laws 7, 8 and 11 at the door: whatever a program makes of its history, the trace holds each message once, and the ids
of every branch are what the engine saw and sampled."""

import asyncio
import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rollwright.dialects import DIALECTS
from rollwright.engines.config import RelayConfig
from rollwright.engines.relay import RelayEngine
from rollwright.engines.scripted.config import ScriptedConfig
from rollwright.engines.scripted.server import ScriptedServer
from rollwright.telemetry.loop import new_event_loop
from rollwright.wire import Stop, assistant

from .doors import PATHS, request, rigged

MOVES = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(["go on", "go on", "go on", "fork", "compact", "rewrite", "begin"]),
        st.sampled_from(["a", "b", "hello"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=7,
)


def speak(call, rng):
    return assistant("".join(rng.choice(["the ", "them", "né", "thing"]) for _ in range(rng.randint(1, 5))))


def changed(histories, which, move):
    """The history that the program goes on with: a list of words, turn about."""
    if move == "begin" or not histories:
        histories.append([])
        return histories[-1]
    history = histories[which % len(histories)]
    if move == "fork":
        histories.append(list(history))
        return histories[-1]
    if move == "compact":
        history[:] = ["summary of it all", "I see"]
    elif move == "rewrite" and history:
        history[0] += "!"
    return history


async def played(dialect, moves):
    """Programs play their moves through the door; the trace, and what the engine logged."""
    async with ScriptedServer(ScriptedConfig(tokens=True, seed=1), speak) as server:
        relay = RelayConfig(base_url=server.base_url, api_key_env="NO_KEY_IS_NEEDED")
        async with RelayEngine(relay, "m") as engine, rigged(engine, return_tokens=True) as rig:
            histories = []
            for which, move, word, stream in moves:
                history = changed(histories, which, move)
                history.append(word)
                history.append(await said(rig, dialect, history, stream))
        return rig.trace.freeze(Stop.FINISHED), server.log


async def said(rig, dialect, history, stream):
    body = json.dumps(request(dialect, *history, stream=stream)).encode()
    headers = {"x-api-key": rig.door.key}
    async with rig.client.post(rig.door.url + PATHS[dialect], data=body, headers=headers) as answer:
        data = await answer.read()
        assert answer.status == 200, data
    if not stream:
        return DIALECTS[dialect].read_reply(data).message.text
    events = DIALECTS[dialect].stream_reader().feed(data)
    return "".join(event.text for event in events[:-1])


def tape(trace, call):
    pieces = []
    while call >= 0:
        pieces.append(trace.calls[call].tokens.ids)
        call = trace.calls[call].tokens.base
    return np.concatenate(pieces[::-1])


@settings(max_examples=30)
@given(st.sampled_from(sorted(DIALECTS)), MOVES)
def test_every_branch_is_what_the_engine_saw_and_sampled(dialect, moves):
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        trace, log = runner.run(played(dialect, moves))
    assert trace.trainable, trace.untrainable
    assert len(trace.calls) == len(log) == len(moves)
    for call, entry in enumerate(log):
        seen = np.concatenate([entry.tokens.prompt_ids, entry.tokens.completion_ids])
        assert np.array_equal(tape(trace, call), seen)
    sampled = sum(int(call.tokens.sampled.sum()) for call in trace.calls)
    assert sampled == sum(len(entry.tokens.completion_ids) for entry in log)
    heard = [(node.parent, node.message) for node in trace.nodes if node.call < 0]
    assert len(heard) == len(set(heard))


def test_a_turn_stores_what_it_adds():
    """Law 7: sixty turns that send the whole history each time put each message and each id on record once."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        trace, log = runner.run(played("chat", [(0, "go on", "hello", bool(turn % 3)) for turn in range(60)]))
    assert len(trace.nodes) == 120
    assert len(trace.leaves) == 1
    last = log[-1].tokens
    assert sum(len(call.tokens.ids) for call in trace.calls) == len(last.prompt_ids) + len(last.completion_ids)
