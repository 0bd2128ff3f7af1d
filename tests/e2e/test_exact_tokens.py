"""Law 8, end to end: what a trainer reads from a batch file is what the engine logged that it saw and sampled.

The engine is the scripted one behind real HTTP, in token mode, with experts. Conversations branch, fall back, start
over, and answers are sampled in ways that rendering them again would not give.
"""

import asyncio
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rollwright.engines.config import RelayConfig
from rollwright.engines.relay import RelayEngine
from rollwright.engines.scripted import ScriptedConfig, ScriptedServer
from rollwright.orchestrator import Batch, samples_of
from rollwright.orchestrator.transports import BatchReceiver
from rollwright.orchestrator.transports.files import write_batch
from rollwright.rollouts import Environment
from rollwright.tasks import Task, Taskset, reward
from rollwright.wire import Stop, assistant, user

# One move: which conversation goes on (a new one past the end), whether it branches first, and what is said.
moves = st.lists(
    st.tuples(st.integers(0, 5), st.booleans(), st.lists(st.text(max_size=12), min_size=1, max_size=2)),
    min_size=1,
    max_size=8,
)


class Nothing(Taskset):
    def tasks(self):
        return []


class Talk(Task):
    @reward
    def turns(self, trace) -> float:
        return trace.turns


class Wandering:
    """A harness that plays moves: several conversations, branches and fresh starts in one rollout."""

    needs_runtime = False
    needs_door = False

    def __init__(self, story):
        self.story = story

    async def run(self, session, around):
        talks = []
        for which, fork, said in self.story:
            if which >= len(talks):
                talks.append(session.begin(around.task.opening()))
                which = len(talks) - 1
            if fork:
                talks.append(talks[which].branch())
                which = len(talks) - 1
            talks[which].say(*map(user, said))
            await session.sample(talks[which])
        return Stop.FINISHED


def speak(call, rng):
    return assistant("".join(rng.choice(["the ", "them", "\n", "né", "thing", "🙂"]) for _ in range(rng.randint(1, 6))))


def expected_experts(logged, position):
    """The engine's own row for a position, from whichever logged payload holds it."""
    for tokens in logged:
        at = position - tokens.routing.start
        if 0 <= at < len(tokens.routing.rows):
            return tokens.routing.rows[at]
    return None


async def roll(story, rerender, layers, directory):
    config = ScriptedConfig(tokens=True, rerender=rerender, routed_layers=layers, routed_topk=2, seed=3)
    async with ScriptedServer(config, speak) as server:
        relay = RelayEngine(RelayConfig(base_url=server.base_url), "m")
        async with (
            relay,
            Environment(Nothing(), harness=Wandering(story)).serving(relay, "m", return_tokens=True) as serving,
        ):
            trace = await serving.run(Talk(id="t", prompt="Begin."))
        # The first two calls prove that the engine tells its tokens.
        log = server.log[2:]
    await asyncio.to_thread(write_batch, Path(directory), Batch.of(1, samples_of(trace)), sync=False)
    (batch,) = BatchReceiver(directory)
    return trace, log, batch


@given(moves, st.booleans(), st.sampled_from([0, 3]))
@settings(max_examples=40)
def test_a_batch_holds_what_the_engine_logged(tmp_path_factory, story, rerender, layers):
    trace, log, batch = asyncio.run(roll(story, rerender, layers, tmp_path_factory.mktemp("batches")))
    assert trace.failure is None, trace.failure
    assert len(log) == len(trace.calls) == len(story)
    chains = {call: chain(trace, call) for call in range(len(log))}
    for call, entry in enumerate(log):
        seen = np.concatenate([entry.tokens.prompt_ids, entry.tokens.completion_ids])
        tape = np.concatenate([trace.calls[link].tokens.ids for link in chains[call]])
        assert np.array_equal(tape, seen)
    trained = []
    leaves = [call for call in chains if not any(call in other[:-1] for other in chains.values())]
    for sample in batch.samples:
        leaf = leaves[sample.branch]
        check_sample(sample, log, chains[leaf], trained, layers)
    # Every sampled token of every call is trained exactly once.
    assert sorted(trained) == sorted(
        (call, n) for call, e in enumerate(log) for n in range(len(e.tokens.completion_ids))
    )


def chain(trace, call):
    links = []
    while call >= 0:
        links.append(call)
        call = trace.calls[call].tokens.base
    return links[::-1]


def check_sample(sample, log, links, trained, layers):
    final = log[links[-1]].tokens
    assert np.array_equal(sample.ids, np.concatenate([final.prompt_ids, final.completion_ids]))
    logprobs = np.zeros(len(sample.ids), np.float32)
    for call in links:
        tokens = log[call].tokens
        start = len(tokens.prompt_ids)
        logprobs[start : start + len(tokens.completion_ids)] = tokens.logprobs
        for n in range(len(tokens.completion_ids)):
            if sample.mask[start + n]:
                trained.append((call, n))
    assert np.array_equal(sample.logprobs, logprobs)
    sampled_anywhere = logprobs != 0
    assert not sample.mask[~sampled_anywhere].any()
    if layers:
        logged = [log[call].tokens for call in links]
        for position in range(len(sample.ids)):
            row = expected_experts(logged, position)
            assert sample.routed_hole[position] == (row is None)
            if row is not None:
                assert np.array_equal(sample.routed[position], row)
        assert sample.routed_hole.sum() == 1  # The last sampled token of the tape: nobody knows its row.
    else:
        assert sample.routed is None
