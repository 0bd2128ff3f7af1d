"""Random call trees, together with what their engine knows: each call's prompt, answer, logprobs and routing.

The log is plain lists, and the references in the tests read the log, never the trace.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from rollwright.orchestrator import Sample
from rollwright.wire import CallRecord, Failure, Layer, Routing, TokenSegment, Trace
from rollwright.wire.arrays import column

LAYERS, TOP_K = 2, 3
FAILURE = Failure(Layer.ENGINE, "EngineUnavailable", "away")


@dataclass
class Logged:
    """One call as the engine saw it."""

    base: int
    prompt: list[int]
    answer: list[int]
    logprobs: list[float]
    version: int
    routed_from: int | None
    """The first position of the routing payload; None if none came."""
    failed: bool = False

    @property
    def tape(self) -> list[int]:
        return self.prompt + self.answer

    @property
    def known_rows(self) -> int:
        """Positions that the engine has read when the call ends: all but the last one it sampled."""
        return len(self.tape) - bool(self.answer)


@dataclass
class World:
    log: list[Logged]
    trace: Trace

    def bases(self) -> list[int]:
        """Of each call, the longest earlier tape that its prompt begins with, among those that grew out of the one it
        was told to continue."""
        bases: list[int] = []
        for index, call in enumerate(self.log):
            kin = {call.base}
            found = []
            for other, candidate in enumerate(self.log[:index]):
                if not candidate.failed and bases[other] in kin:
                    kin.add(other)
                    if call.prompt[: len(candidate.tape)] == candidate.tape:
                        found.append((len(candidate.tape), other))
            before = len(self.log[call.base].tape) if call.base >= 0 else 0
            bases.append(max([pair for pair in found if pair[0] > before], default=(0, call.base))[1])
        return bases

    def leaves(self) -> list[int]:
        bases = {base for base, call in zip(self.bases(), self.log, strict=True) if not call.failed}
        return [i for i, call in enumerate(self.log) if not call.failed and i not in bases]

    def chain(self, leaf: int) -> list[int]:
        return [] if leaf < 0 else [*self.chain(self.bases()[leaf]), leaf]


def true_row(tape: list[int], position: int, dtype: str) -> np.ndarray:
    """The experts of a position depend on all that was read up to it, as in a real model."""
    rng = np.random.default_rng([abs(token) for token in tape[: position + 1]])
    return rng.integers(1, np.iinfo(dtype).max, (LAYERS, TOP_K), dtype)


def payload(call: Logged, dtype: str, *, padded: bool) -> Routing | None:
    if call.routed_from is None or call.routed_from > call.known_rows:
        return None
    rows = [true_row(call.tape, p, dtype) for p in range(call.routed_from, call.known_rows)]
    if padded and call.answer:
        # Some engines pad to the length of the tape; the row that they make up belongs nowhere.
        rows.append(np.full((LAYERS, TOP_K), 255, dtype))
    return Routing(call.routed_from, column(np.reshape(rows, (len(rows), LAYERS, TOP_K)), dtype.lstrip("<")))


def segment(call: Logged, known: int, routing: Routing | None) -> TokenSegment:
    sampled = [False] * (len(call.prompt) - known) + [True] * len(call.answer)
    logprobs = [0.0] * (len(call.prompt) - known) + call.logprobs
    return TokenSegment(
        call.base, column(call.tape[known:], "i4"), column(sampled, "b1"), column(logprobs, "f4"), routing
    )


@st.composite
def worlds(draw, routed: bool | None = None, max_calls: int = 7) -> World:
    dtype = draw(st.sampled_from(["u1", "<u2"]))
    routed = draw(st.booleans()) if routed is None else routed
    # With few different ids, prompts begin by chance with what other calls have said.
    token = st.integers(0, draw(st.sampled_from([1, 2**31 - 1])))
    logprob = st.floats(-50, 0, width=32)
    log: list[Logged] = []
    records: list[CallRecord] = []
    for index in range(draw(st.integers(1, max_calls))):
        answered = [i for i, call in enumerate(log) if not call.failed]
        base = draw(st.sampled_from([-1, *answered, *answered[-1:]]))  # mostly the newest: a chat that goes on
        before = log[base].tape if base >= 0 else []
        prompt = before + draw(st.lists(token, min_size=base < 0, max_size=5))
        answer = draw(st.lists(token, max_size=4))
        start = draw(st.sampled_from([None, 0, max(len(before) - 1, 0), len(before)])) if routed else None
        logprobs = [draw(logprob) for _ in answer]
        call = Logged(base, prompt, answer, logprobs, draw(st.integers(0, 9)), start, draw(st.integers(0, 9)) == 0)
        log.append(call)
        if call.failed:
            records.append(CallRecord(prompt=0, failure=FAILURE))
        else:
            tokens = segment(call, len(before), payload(call, dtype, padded=draw(st.booleans())))
            records.append(CallRecord(prompt=0, reply=index, policy_version=call.version, tokens=tokens))
    reward = draw(st.floats(-1e6, 1e6))
    trace = Trace(
        task_id=draw(st.text(max_size=5)), attempt=draw(st.integers(0, 99)), calls=tuple(records), reward=reward
    )
    return World(log, trace)


def chat(
    turns: int = 1, *, task_id: str = "t", attempt: int = 0, reward: float = 1.0, new: int = 3, answer: int = 2
) -> Trace:
    """A plain conversation, for tests that are about something else."""
    tape: list[int] = []
    records = []
    for turn in range(turns):
        prompt = [*tape, *range(len(tape), len(tape) + new)]
        call = Logged(turn - 1, prompt, [7] * answer, [-0.5] * answer, turn, None)
        records.append(CallRecord(prompt=0, reply=turn, policy_version=turn, tokens=segment(call, len(tape), None)))
        tape = call.tape
    return Trace(task_id=task_id, attempt=attempt, calls=tuple(records), reward=reward)


def assert_same(left: Sample, right: Sample) -> None:
    """Equal to the last bit."""
    for name in Sample.__struct_fields__:
        ours, theirs = getattr(left, name), getattr(right, name)
        if isinstance(ours, np.ndarray):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), name
            assert ours.tobytes() == theirs.tobytes(), name
        else:
            assert ours == theirs, name
