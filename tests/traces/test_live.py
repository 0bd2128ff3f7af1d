"""The message tree: stored once, exact, and flat in cost (laws 7, 8, 11)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollwright.traces import LiveTrace, Phase
from rollwright.wire import CallTokens, Failure, Finish, Layer, ModelReply, Stop, Usage, assistant, user

FAILURE = Failure(Layer.ENGINE, "EngineUnavailable", "away")


def tokens(prompt, completion):
    return CallTokens(
        np.array(prompt, np.int32), np.array(completion, np.int32), -np.arange(1, len(completion) + 1, dtype=np.float32)
    )


def reply(text, prompt=(), completion=()):
    return ModelReply(
        assistant(text),
        Finish.STOP,
        Usage(len(prompt), len(completion)),
        tokens(prompt, completion) if prompt else None,
    )


def tape_of(trace, call):
    """What the engine saw and sampled up to the end of `call`, read back from the segments."""
    ids = []
    while call >= 0:
        segment = trace.calls[call].tokens
        ids = segment.ids.tolist() + ids
        call = segment.base
    return ids


@st.composite
def stories(draw):
    """Random calls: each continues a conversation that stands somewhere in the tree, with words that may repeat, and
    with a prompt that continues the tape exactly, drifts from it, or has nothing to do with it."""
    return draw(
        st.lists(
            st.tuples(
                st.integers(0, 30),  # which earlier conversation to continue
                st.lists(st.sampled_from("abc"), max_size=2),  # what is said
                st.sampled_from("xyz"),  # what is answered
                st.sampled_from(["exact", "exact", "exact", "drift", "fresh"]),
                st.lists(st.integers(0, 3), max_size=3),  # new prompt ids
                st.lists(st.integers(0, 3), min_size=1, max_size=3),  # sampled ids
            ),
            max_size=12,
        )
    )


@given(stories())
@settings(max_examples=300)
def test_every_branch_is_what_the_engine_saw_and_sampled(story):
    live = LiveTrace("t", 0)
    tips = [(-1, (), [])]  # node, messages, ids that the engine would see
    seen = []
    for where, said, answer, kind, fresh, sampled in story:
        tip, path, tape = tips[where % len(tips)]
        words = tuple(user(word) for word in said) or ((user("go"),) if tip < 0 else ())
        node = live.extend(tip, words)
        prompt = {"exact": tape, "drift": tape[:-1], "fresh": []}[kind] + fresh or [9]
        call = live.prepare(node, "m")
        node = live.commit(call, reply(answer, prompt, sampled))
        seen.append((prompt, sampled))
        path = (*path, *words, assistant(answer))
        assert live.path(node) == path
        assert live.follow([-1], path)[1] == len(path)
        tips.append((node, path, prompt + sampled))
    trace = live.freeze(Stop.FINISHED)
    for number, (prompt, sampled) in enumerate(seen):
        assert tape_of(trace, number) == prompt + sampled
        segment = trace.calls[number].tokens
        assert segment.sampled.sum() == len(sampled)
        assert segment.ids[segment.sampled].tolist() == sampled
        assert segment.logprobs[segment.sampled].tolist() == [-float(n) for n in range(1, len(sampled) + 1)]
        assert not segment.logprobs[~segment.sampled].any()


@given(stories())
def test_no_two_nodes_that_nobody_sampled_are_the_same(story):
    live = LiveTrace("t", 0)
    tips = [-1]
    for where, said, answer, *_ in story:
        node = live.extend(tips[where % len(tips)], [user(word) for word in said] or [user("go")])
        tips.append(live.commit(live.prepare(node, "m"), reply(answer)))
    given_nodes = [(node.parent, node.message) for node in live.freeze(Stop.FINISHED).nodes if node.call < 0]
    assert len(given_nodes) == len(set(given_nodes))


def test_an_exact_chain_stores_each_id_once():
    live, ids = LiveTrace("t", 0), []
    node = -1
    for turn in range(50):
        node = live.extend(node, [user(str(turn))])
        prompt = [*ids, 100 + turn]
        node = live.commit(live.prepare(node, "m"), reply(str(turn), prompt, [turn, turn]))
        ids = [*prompt, turn, turn]
    trace = live.freeze(Stop.FINISHED)
    assert sum(len(call.tokens.ids) for call in trace.calls) == len(ids) == 150
    assert [call.tokens.base for call in trace.calls] == list(range(-1, 49))
    assert trace.trainable


def test_a_drifted_prompt_falls_back_to_the_last_tape_it_continues():
    live = LiveTrace("t", 0)
    first = live.commit(live.prepare(live.extend(-1, [user("a")]), "m"), reply("x", [1], [2]))
    second = live.commit(live.prepare(live.extend(first, [user("b")]), "m"), reply("y", [1, 2, 3], [4, 5]))
    live.commit(live.prepare(live.extend(second, [user("c")]), "m"), reply("z", [1, 2, 3, 5, 6], [7]))
    trace = live.freeze(Stop.FINISHED)
    assert [call.tokens.base for call in trace.calls] == [-1, 0, 0]
    assert trace.calls[2].tokens.ids.tolist() == [3, 5, 6, 7]


def test_a_call_ends_once():
    live = LiveTrace("t", 0)
    call = live.prepare(live.extend(-1, [user("a")]), "m")
    live.abort(call, FAILURE)
    with pytest.raises(ValueError, match="not open"):
        live.commit(call, reply("x"))
    assert live.freeze(Stop.FAILED).calls[0].failure == FAILURE


@pytest.mark.parametrize(
    ("act", "trainable"),
    [
        (lambda live, call: live.commit(call, reply("x", [1], [2])), True),
        (lambda live, call: live.commit(call, reply("x")), False),
        (lambda live, call: None, False),
        (lambda live, call: live.abort(call, FAILURE), False),
    ],
    ids=["exact", "no tokens", "lost", "no answer at all"],
)
def test_only_what_is_proven_exact_is_trainable(act, trainable):
    live = LiveTrace("t", 0)
    act(live, live.prepare(live.extend(-1, [user("a")]), "m"))
    assert live.freeze(Stop.FINISHED).trainable is trainable


def test_waiting_for_a_slot_is_counted_apart():
    now = [0.0]
    live = LiveTrace("t", 0, clock=lambda: now[0])
    with live.phase(Phase.SCORE):
        now[0] += 5
        live.queued(3)
    timing = live.freeze(Stop.FINISHED).timing
    assert (timing.score_s, timing.queue_s, timing.total_s) == (2, 3, 5)


def test_the_live_view_reads_like_the_finished_one():
    live = LiveTrace("t", 0)
    node = live.commit(live.prepare(live.extend(-1, [user("a")]), "m"), reply("x", [1], [2, 3]))
    live.extend(node, [user("b")])
    trace = live.freeze(Stop.FINISHED)
    for name in ("messages", "reply", "usage", "turns"):
        assert getattr(live, name) == getattr(trace, name)
