"""Conversations that heard the same words: each goes on in its own tokens, whoever else said the same."""

import asyncio

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny
from rollwright.engines.config import RelayConfig, TokensConfig
from rollwright.engines.scripted import ScriptedConfig, ScriptedServer
from rollwright.engines.tokens import TokensEngine
from rollwright.engines.tokens.memory import Memory, Turn
from rollwright.harnesses import Limits, Session
from rollwright.renderers.contract import ThinkingPolicy
from rollwright.traces import LiveTrace
from rollwright.wire import Message, ModelCall, assistant, user

ROUTED = {"routed_layers": 2, "routed_topk": 1}
LINE = assistant("the abc thing is in the other")
# Which of the conversations speaks next. Those of one rollout are told apart by what they end with, or not at all.
ORDERS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=2, max_size=14)


def copied(messages):
    """The same messages as another reader would have them: equal, and no object of ours."""
    return tuple(msgspec.json.decode(msgspec.json.encode(message), type=Message) for message in messages)


async def interleaved(order):
    """Two rollouts with two branches each, all of the same words: their turns with the tokens that came back."""
    config = ScriptedConfig(tokens=True, context_tokens=8192, **ROUTED)
    async with ScriptedServer(config, lambda call, rng: LINE, tiny.renderer()) as server:
        pool = tiny.pool(history=ThinkingPolicy.KEEP)
        relay, tokens = RelayConfig(base_url=server.base_url), TokensConfig(routed_experts=True)
        async with TokensEngine(tokens, relay, pool, "m") as engine:
            sessions = [Session(engine, LiveTrace("t", at), model="m", limits=Limits()) for at in range(2)]
            told = {key: [user("hi")] for key in [(0, 0), (0, 1), (1, 0), (1, 1)]}
            asked = []
            for at, key in enumerate(order):
                # The same words are sampled in other tokens every time.
                server._player._voice._config = ScriptedConfig(tokens=True, seed=at, **ROUTED)
                turn = await sessions[key[0]].ask(ModelCall("", copied(told[key])))
                reply = await turn.complete()
                asked.append((turn, reply.tokens))
                told[key] += [reply.message, user("more")]
            return asked, sessions


@settings(max_examples=25)
@given(ORDERS)
def test_equal_words_never_take_the_tokens_of_another_rollout(order):
    asked, sessions = asyncio.run(interleaved(order))
    mine = {}
    for (rollout, _), (turn, tokens) in zip(order, asked, strict=True):
        trace = sessions[rollout].trace
        previous = trace._nearest_call[turn.prompt]
        if previous < 0:
            assert tokens.routing.start == 0
        else:
            # What the trace says that the call goes on after is on the tape, token by token, with all its rows.
            tape = mine[rollout, previous]
            assert np.array_equal(tokens.prompt_ids[: len(tape)], tape)
            assert tokens.routing.start == len(tape) - 1
        number = trace._nearest_call[turn.conversation.tip]
        mine[rollout, number] = np.concatenate([tokens.prompt_ids, tokens.completion_ids])
    for session in sessions:
        trace = session.trace
        assert not trace._inexact
        for number, call in enumerate(trace._calls):
            # Every call that goes on shares the tape of the call before it, so no row is missing anywhere.
            assert call.tokens.base == trace._nearest_call[call.prompt]
            assert call.tokens.base < number


def turn_of(renderer, name, text="Yes."):
    tape = renderer.render([user("hi")])
    answer = assistant(text)
    return Turn(None, (user("hi"), answer), 2, tape.sample(renderer.answer(tape, answer)), name=name)


def test_a_name_finds_its_turn_or_none():
    renderer, memory = tiny.renderer(), Memory(2**20)
    one, two = turn_of(renderer, "a/0"), turn_of(renderer, "b/0")
    memory.put(one)
    memory.put(two)
    talk = [user("hi"), assistant("Yes."), user("more")]
    assert memory.find(talk, "a/0") is one
    assert memory.find(talk, "b/0") is two
    assert memory.find(talk, "c/0") is None
    assert memory.find(talk) is two
    # A history that was rewritten goes on in no tape, even if it names one.
    assert memory.find([user("hi"), assistant("No."), user("more")], "a/0") is None


def test_what_was_forgotten_is_found_by_no_name():
    renderer, memory = tiny.renderer(), Memory(1)
    for number in range(3):
        memory.put(turn_of(renderer, f"a/{number}"))
    talk = [user("hi"), assistant("Yes."), user("more")]
    assert [memory.find(talk, f"a/{number}") is not None for number in range(3)] == [False, False, True]
    assert (len(memory), memory.forgotten, len(memory._by_name)) == (1, 2, 1)
