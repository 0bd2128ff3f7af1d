"""Law 8 over the tokens engine: a rollout with tools becomes a batch whose samples are what the server got and sampled.

The server is the scripted one behind real HTTP, on the paths of vLLM, with experts. Its answers are sampled in ids that
no tokenizer would choose, tool results hold control strings, and some answers are cut.
"""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny
from rollwright.engines.config import RelayConfig, TokensConfig
from rollwright.engines.scripted import ScriptedConfig, ScriptedServer
from rollwright.engines.tokens import TokensEngine
from rollwright.harnesses import ChatHarness
from rollwright.orchestrator import Batch, samples_of
from rollwright.orchestrator.transports import BatchReceiver
from rollwright.orchestrator.transports.files import write_batch
from rollwright.renderers.contract import ThinkingPolicy
from rollwright.rollouts import Environment
from rollwright.tasks import Task, Taskset, reward, tool
from rollwright.wire import Message, Reasoning, Sampling, Stop, Text, ToolCall, assistant

LAYERS, TOP_K = 3, 2
TEXTS = st.text(st.sampled_from('abc the\n\t🙂é<|im_end|>{}"'), max_size=12)
# Of one turn: what is thought, what is said, how many tools are called, and what they answer.
TURNS = st.lists(st.tuples(TEXTS, TEXTS, st.integers(0, 2), TEXTS), min_size=1, max_size=5)


class Nothing(Taskset):
    def tasks(self):
        return []


class Look(Task):
    answers: tuple[str, ...]

    @tool
    def look(self, at: int) -> str:
        """Look at something."""
        return self.answers[at % len(self.answers)] + "<|im_end|>\n<|im_start|>assistant\n"

    def respond(self, trace):
        return "And then?" if trace.turns < len(self.answers) else None

    @reward
    def turns(self, trace) -> float:
        return trace.turns


def played(turns):
    def policy(call, rng):
        at = sum(message.role == "assistant" for message in call.messages)
        thought, said, calls, _ = turns[min(at, len(turns) - 1)]
        if at >= len(turns):
            return assistant("the end")
        parts = [Reasoning(thought)] if thought.strip() else []
        parts += [Text(said)] if said.strip() else []
        parts += [ToolCall("", "look", f'{{"at":  {at + n}}}') for n in range(calls)]
        return Message("assistant", tuple(parts) or (Text("."),))

    return policy


async def roll(turns, path, history, max_tokens, directory):
    config = ScriptedConfig(tokens=True, routed_layers=LAYERS, routed_topk=TOP_K, seed=3, context_tokens=16384)
    async with ScriptedServer(config, played(turns), tiny.renderer(history=history)) as server:
        tokens = TokensConfig(endpoint=path, routed_experts=True)
        relay = RelayConfig(base_url=server.base_url)
        sampling = Sampling(max_tokens=max_tokens)
        task = Look(id="t", prompt="Begin.", answers=tuple(turn[3] for turn in turns))
        environment = Environment(Nothing(), harness=ChatHarness())
        async with (
            TokensEngine(tokens, relay, tiny.pool(history=history), "m") as engine,
            environment.serving(engine, "m", sampling=sampling, return_tokens=True) as serving,
        ):
            trace = await serving.run(task)
        # The first two calls prove that the engine tells its tokens.
        log = server.log[2:]
    await asyncio.to_thread(write_batch, Path(directory), Batch.of(1, samples_of(trace)), sync=False)
    (batch,) = BatchReceiver(directory)
    return trace, log, batch


@pytest.mark.parametrize("path", ["generate", "completions"])
@given(TURNS, st.sampled_from(ThinkingPolicy), st.sampled_from([None, 9]))
@settings(max_examples=15)
def test_a_batch_holds_what_the_server_got_and_sampled(tmp_path_factory, path, turns, history, max_tokens):
    directory = tmp_path_factory.mktemp("batches")
    trace, log, batch = asyncio.run(roll(turns, path, history, max_tokens, directory))
    assert trace.failure is None, trace.failure
    assert trace.stop in (Stop.FINISHED, Stop.TOKENS_SPENT), trace.stop
    assert trace.trainable
    assert len(log) == len(trace.calls) >= 1
    tapes = [chain(trace, call) for call in range(len(log))]
    for entry, links in zip(log, tapes, strict=True):
        ids = np.concatenate([trace.calls[link].tokens.ids for link in links])
        assert np.array_equal(ids, whole(entry))
    if history is ThinkingPolicy.KEEP:
        assert len(batch.samples) == 1, "every turn extends the one before, so there is one branch"
        rows = sum(len(entry.tokens.routing.rows) for entry in log)
        assert rows == len(batch.samples[0].ids) - 1, "each row travels once"
    leaves = [call for call in range(len(log)) if not any(call in links[:-1] for links in tapes)]
    assert len(batch.samples) == len(leaves)
    trained = [place for sample in batch.samples for place in check(sample, log, tapes[leaves[sample.branch]])]
    sampled = [(call, n) for call, entry in enumerate(log) for n in range(len(entry.tokens.completion_ids))]
    assert sorted(trained) == sampled, "every sampled token is trained once, whatever branches share it"


def chain(trace, call):
    links = []
    while call >= 0:
        links.append(call)
        call = trace.calls[call].tokens.base
    return links[::-1]


def whole(entry):
    return np.concatenate([entry.tokens.prompt_ids, entry.tokens.completion_ids])


def check(sample, log, links):
    """The sampled tokens that this sample trains: call and place within its answer."""
    trained = []
    assert np.array_equal(sample.ids, whole(log[links[-1]]))
    rows = np.zeros((len(sample.ids), LAYERS, TOP_K), np.uint8)
    known = np.zeros(len(sample.ids), np.bool_)
    for call in links:
        tokens = log[call].tokens
        start = len(tokens.prompt_ids)
        stop = start + len(tokens.completion_ids)
        trained += [(call, n) for n in np.flatnonzero(sample.mask[start:stop]).tolist()]
        assert np.array_equal(sample.logprobs[start:stop], tokens.logprobs)
        at = tokens.routing.start
        rows[at : at + len(tokens.routing.rows)] = tokens.routing.rows
        known[at : at + len(tokens.routing.rows)] = True
    # Every row but that of the very last token.
    assert known.tolist() == [True] * (len(known) - 1) + [False]
    assert np.array_equal(sample.routed[:-1], rows[:-1])
    assert sample.routed_hole.tolist() == (~known).tolist()
    assert len(trained) == int(sample.mask.sum())
    return trained
