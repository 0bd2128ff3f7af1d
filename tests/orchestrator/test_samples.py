"""Samples are what the engine saw and sampled: every branch, logprob and routing row, each token trained once."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.call_trees import FAILURE, LAYERS, TOP_K, World, chat, true_row, worlds
from rollwright.orchestrator import DropReason, samples_of, why_dropped
from rollwright.traces import LiveTrace
from rollwright.wire import (
    CallTokens,
    Finish,
    ModelReply,
    Routing,
    Stop,
    TokenSegment,
    Trace,
    WireError,
    assistant,
    user,
)
from rollwright.wire.arrays import column


def expected_samples(world: World) -> list[dict]:
    """The naive reference: lists and dicts over the engine's log."""
    expected, trained = [], set()
    for branch, leaf in enumerate(world.leaves()):
        chain = world.chain(leaf)
        tape = world.log[leaf].tape
        mask, logprobs = [False] * len(tape), [0.0] * len(tape)
        for call in chain:
            logged = world.log[call]
            for k, logprob in enumerate(logged.logprobs):
                mask[len(logged.prompt) + k] = (call, k) not in trained
                logprobs[len(logged.prompt) + k] = logprob
                trained.add((call, k))
        lengths = np.diff([0, *(len(world.log[call].tape) for call in chain)]).tolist()
        versions = [world.log[call].version for call in chain]
        if any(mask):
            expected.append(
                {
                    "branch": branch,
                    "ids": tape,
                    "mask": mask,
                    "logprobs": logprobs,
                    "span_lengths": lengths,
                    "span_versions": versions,
                }
            )
    return expected


@given(worlds())
def test_samples_equal_the_naive_reference(world):
    samples = samples_of(world.trace)
    expected = expected_samples(world)
    assert [sample.branch for sample in samples] == [fields.pop("branch") for fields in expected]
    for sample, fields in zip(samples, expected, strict=True):
        for name, values in fields.items():
            assert getattr(sample, name).tolist() == values, name
        assert (sample.task_id, sample.attempt, sample.reward) == (*world.trace.key, world.trace.reward)
    assert (why_dropped(world.trace) is None) == bool(samples)


@given(worlds())
def test_a_sampled_token_is_trained_once(world):
    trained = sum(int(sample.mask.sum()) for sample in samples_of(world.trace))
    assert trained == sum(len(call.answer) for call in world.log if not call.failed)


@given(worlds(routed=True))
def test_routing_rows_are_the_truth_or_marked_holes(world):
    leaves = dict(enumerate(world.leaves()))
    for sample in samples_of(world.trace):
        chain = world.chain(leaves[sample.branch])
        payloads = [c for c in chain if world.trace.calls[c].tokens.routing is not None]
        delivered = {p for c in payloads for p in range(world.log[c].routed_from, world.log[c].known_rows)}
        if not payloads:
            assert sample.routed is None
            assert sample.routed_hole is None
            continue
        assert sample.routed_hole.tolist() == [p not in delivered for p in range(len(sample.ids))]
        for p, row in enumerate(sample.routed):
            truth = true_row(sample.ids.tolist(), p, sample.routed.dtype.str.lstrip("|")) if p in delivered else 0
            assert np.array_equal(row, np.broadcast_to(truth, (LAYERS, TOP_K)))


def routed_segment(base: int, new: int, start: int, rows: np.ndarray | None) -> TokenSegment:
    """`new` tokens, the last two of them sampled."""
    routing = None if rows is None else Routing(start, column(rows, "u1"))
    sampled = column([False] * (new - 2) + [True] * 2, "b1")
    return TokenSegment(base, column(np.arange(new), "i4"), sampled, column(np.zeros(new), "f4"), routing)


def trace_of(*segments: TokenSegment | None) -> Trace:
    calls = chat(len(segments)).calls
    replaced = (msgspec.structs.replace(c, tokens=t) for c, t in zip(calls, segments, strict=True))
    return msgspec.structs.replace(chat(), calls=tuple(replaced))


def rows_of(*values: int) -> np.ndarray:
    return np.array(values).reshape(-1, 1, 1)


def test_the_boundary_row_comes_from_the_next_payload():
    trace = trace_of(routed_segment(-1, 4, 0, rows_of(1, 2, 3)), routed_segment(0, 3, 3, rows_of(4, 5, 6)))
    (sample,) = samples_of(trace)
    assert sample.routed.ravel().tolist() == [1, 2, 3, 4, 5, 6, 0]
    assert np.flatnonzero(sample.routed_hole).tolist() == [6]


def test_a_turn_without_routing_leaves_a_hole_and_shifts_nothing():
    trace = trace_of(
        routed_segment(-1, 4, 0, rows_of(1, 2, 3)),
        routed_segment(0, 3, 0, None),
        routed_segment(1, 3, 7, rows_of(8, 9)),
    )
    (sample,) = samples_of(trace)
    assert sample.routed.ravel().tolist() == [1, 2, 3, 0, 0, 0, 0, 8, 9, 0]
    assert np.flatnonzero(sample.routed_hole).tolist() == [3, 4, 5, 6, 9]


def test_a_row_that_was_read_again_does_not_replace_the_one_it_was_sampled_with():
    trace = trace_of(routed_segment(-1, 4, 0, rows_of(1, 2, 3)), routed_segment(0, 3, 0, rows_of(90, 91, 92, 4, 5, 6)))
    assert samples_of(trace)[0].routed.ravel().tolist() == [1, 2, 3, 4, 5, 6, 0]


def test_a_payload_of_the_whole_tape_fills_an_older_hole():
    trace = trace_of(
        routed_segment(-1, 4, 2, rows_of(3)),
        routed_segment(0, 3, 0, None),
        routed_segment(1, 2, 0, rows_of(*range(1, 9))),
    )
    (sample,) = samples_of(trace)
    assert sample.routed.ravel().tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 0]


@pytest.mark.parametrize(
    ("trace", "reason"),
    [
        (msgspec.structs.replace(chat(), failure=FAILURE), DropReason.FAILED),
        (msgspec.structs.replace(chat(), stop=Stop.FAILED), DropReason.FAILED),
        (msgspec.structs.replace(chat(), stop=Stop.CANCELLED), DropReason.CANCELLED),
        (msgspec.structs.replace(chat(), trainable=False), DropReason.INEXACT),
        (msgspec.structs.replace(chat(), reward=float("nan")), DropReason.REWARD_NOT_FINITE),
        (msgspec.structs.replace(chat(), calls=()), DropReason.NOTHING_SAMPLED),
        (chat(answer=0), DropReason.NOTHING_SAMPLED),
        (trace_of(None), DropReason.NO_TOKENS),
        (trace_of(routed_segment(0, 3, 0, None)), DropReason.BROKEN_TAPE),
        (trace_of(routed_segment(1, 3, 0, None), routed_segment(-1, 3, 0, None)), DropReason.BROKEN_TAPE),
        (trace_of(routed_segment(-2, 3, 0, None)), DropReason.BROKEN_TAPE),
        (trace_of(routed_segment(-1, 3, 1, rows_of(1, 2, 3))), DropReason.BROKEN_ROUTING),
        (
            trace_of(routed_segment(-1, 3, 0, rows_of(1, 2)), routed_segment(0, 3, 2, np.ones((2, 1, 2)))),
            DropReason.BROKEN_ROUTING,
        ),
    ],
)
def test_what_is_not_proven_is_dropped_with_its_reason(trace, reason):
    assert why_dropped(trace) is reason
    assert samples_of(trace) == []


def test_a_branch_that_rests_on_a_failed_call_is_refused():
    trace = chat(2)
    failed = msgspec.structs.replace(trace.calls[0], failure=FAILURE)
    assert why_dropped(msgspec.structs.replace(trace, calls=(failed, trace.calls[1]))) is DropReason.BROKEN_TAPE


def test_a_sample_with_columns_of_different_length_cannot_be_made():
    (sample,) = samples_of(chat())
    for change in (
        {"mask": sample.mask[:-1]},
        {"span_lengths": sample.span_lengths + 1},
        {"span_versions": sample.span_versions[:0]},
        {"routed_hole": np.zeros(len(sample.ids), np.bool_)},
        {"routed_hole": np.zeros(1, np.bool_), "routed": np.zeros((1, 1, 1), np.uint8)},
    ):
        with pytest.raises(WireError):
            msgspec.structs.replace(sample, **change)


class ToyEngine:
    """Samples ids that it never samples twice, so that each can be found again, and logs what it was shown."""

    def __init__(self) -> None:
        self.log: list[tuple[list[int], list[int], list[float]]] = []
        self._next = 1_000

    def answer(self, prompt: list[int], length: int) -> CallTokens:
        ids = list(range(self._next, self._next + length))
        self._next += length
        logprobs = [-1.0 / i for i in ids]
        self.log.append((prompt, ids, np.float32(logprobs).tolist()))
        return CallTokens(column(prompt, "i4"), column(ids, "i4"), column(logprobs, "f4"))


@given(
    st.lists(
        st.tuples(
            st.integers(-1, 30), st.booleans(), st.lists(st.integers(0, 99), min_size=1, max_size=4), st.integers(1, 4)
        ),
        min_size=1,
        max_size=10,
    )
)
def test_through_the_message_tree_each_branch_is_what_the_engine_logged(turns):
    """Random talks with branches, sub-agents and templates that rewrite history, through the live trace."""
    engine, live = ToyEngine(), LiveTrace("t", 0)
    answers: list[tuple[int, list[int]]] = []
    for number, (parent, rewritten, new, length) in enumerate(turns):
        node, tape = answers[parent % len(answers)] if answers and parent >= 0 else (-1, [])
        prompt = [*tape[: len(tape) // 2 if rewritten else None], *new]
        tokens = engine.answer(prompt, length)
        call = live.prepare(live.extend(node, [user(f"turn {number}")]), "m")
        reply = live.commit(call, ModelReply(assistant(f"answer {number}"), Finish.STOP, tokens=tokens))
        answers.append((reply, prompt + engine.log[-1][1]))
    samples = samples_of(live.freeze(Stop.FINISHED, reward=1.0))
    owner = {token: logged for logged in engine.log for token in logged[1]}
    logprob_of = {token: value for _, ids, logprobs in engine.log for token, value in zip(ids, logprobs, strict=True)}
    trained = Counter(token for sample in samples for token in sample.ids[sample.mask].tolist())
    assert trained == Counter(owner.keys())
    for sample in samples:
        prompt, ids, _ = owner[int(sample.ids[-1])]
        assert sample.ids.tolist() == prompt + ids
        assert sample.logprobs[sample.mask].tolist() == [logprob_of[t] for t in sample.ids[sample.mask].tolist()]
