"""The toy tokenizer and the tape: decoding is exact, prompts extend what was sampled, routing has its rows."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.engines.scripted.config import ScriptedConfig
from rollwright.engines.scripted.conversations import Memory, fingerprints
from rollwright.engines.scripted.tape import Tape, route
from rollwright.engines.scripted.tokens import END, NEWLINE, SPECIAL, VOCABULARY, cut, decode, encode, sample
from rollwright.wire import (
    Finish,
    Image,
    Message,
    ModelCall,
    Reasoning,
    Sampling,
    Text,
    ToolCall,
    ToolSpec,
    assistant,
    tool_result,
    user,
)

every_text = st.text(st.characters(exclude_categories=()), max_size=200)
words = st.text("the 0123 answer is näö€😀\n\ud800", max_size=60)


@given(every_text, st.integers())
def test_all_ways_to_write_a_text_decode_to_it(text, seed):
    ids = sample(text, Random(seed))
    assert decode(encode(text)) == text
    assert decode(ids) == text
    assert all(0 <= index < VOCABULARY for index in ids)


def test_what_was_sampled_is_often_not_what_encoding_again_gives():
    drifted = sum(sample("the answer is 1234", Random(seed)) != encode("the answer is 1234") for seed in range(100))
    assert drifted > 60


@given(every_text, st.integers(), st.integers(0, 50))
def test_a_cut_ends_with_a_whole_character_of_the_same_text(text, seed, limit):
    ids = sample(text, Random(seed))
    kept = cut(ids, limit)
    assert len(kept) <= limit
    assert kept == ids[: len(kept)]
    assert text.startswith(decode(kept))


parts = st.one_of(
    words.map(Text),
    words.map(Reasoning),
    st.builds(ToolCall, st.just("call_1"), st.sampled_from(["add", "look"]), words),
)
answers = st.lists(parts, max_size=3).map(lambda found: Message("assistant", tuple(found)))
asks = words.map(user) | words.map(lambda text: tool_result("call_1", text))
talks = st.lists(st.tuples(asks, answers), min_size=1, max_size=6)
limits = st.none() | st.integers(1, 30)


def play(tape, talk, limit=None):
    """Each turn's prompt and completion ids, with the conversation carried on by what was really said."""
    messages: tuple[Message, ...] = ()
    turns = []
    for ask, answer in talk:
        messages += (ask,)
        call = ModelCall("m", messages, sampling=Sampling(max_tokens=limit))
        prints = fingerprints(messages)
        prompt = tape.prompt(call, prints)
        spoken = tape.speak(answer, Finish.STOP, call, prints[-1])
        turns.append((np.concatenate(prompt).tolist(), spoken))
        messages += (spoken.message,)
    return turns


@given(talks, limits, st.integers(0, 3))
def test_every_prompt_extends_what_was_sampled_before(talk, limit, seed):
    turns = play(Tape(ScriptedConfig(seed=seed)), talk, limit)
    for (before, spoken), (prompt, _) in pairwise(turns):
        tape = before + spoken.ids
        assert prompt[: len(tape)] == tape
        closing = [NEWLINE] if spoken.ids and spoken.ids[-1] == END else [END, NEWLINE]
        assert prompt[len(tape) : len(tape) + len(closing)] == closing


@given(talks, limits)
def test_the_same_answer_to_the_same_conversation_has_the_same_ids(talk, limit):
    first, again = (play(Tape(ScriptedConfig(seed=5)), talk, limit) for _ in range(2))
    assert [(prompt, spoken.ids) for prompt, spoken in first] == [(prompt, spoken.ids) for prompt, spoken in again]


def test_rendering_again_drifts_when_told_to():
    talk = [(user("hello there"), assistant("the answer is 1234")), (user("sure?"), assistant("yes"))]
    for rerender in (False, True):
        (before, spoken), (prompt, _) = play(Tape(ScriptedConfig(rerender=rerender, seed=1)), talk)
        extends = prompt[: len(before) + len(spoken.ids)] == before + spoken.ids
        assert extends is not rerender


def test_history_that_somebody_rewrote_is_rendered():
    tape = Tape(ScriptedConfig())
    (before, _), _ = play(tape, [(user("a"), assistant("bb")), (user("c"), assistant("d"))])
    messages = (user("a"), assistant("something else"), user("c"))
    prompt = np.concatenate(tape.prompt(ModelCall("m", messages), fingerprints(messages))).tolist()
    said = [SPECIAL["assistant"], *encode("something else"), END, NEWLINE]
    assert prompt == before[:-1] + said + [SPECIAL["user"], *encode("c"), END, NEWLINE, SPECIAL["assistant"]]


def test_the_cutting_of_text_into_parts_and_the_ids_of_calls_change_no_conversation():
    one = Message("assistant", (ToolCall("a", "f", "{}"), Text("x"), Reasoning("why", "signed"), Text("y")))
    other = Message("assistant", (Reasoning("why"), Text("xy"), ToolCall("b", "f", "{}")))
    assert fingerprints([one]) == fingerprints([other])
    different = [assistant("xy"), user("xy"), assistant("x"), Message("user", (Image("00", "image/png"),)), one]
    assert len({fingerprints([message])[-1] for message in different}) == len(different)
    assert fingerprints([one]) != fingerprints([one], (ToolSpec("f"),))


@given(answers, st.integers(1, 40))
def test_a_limit_on_tokens_is_kept_and_told(answer, limit):
    tape = Tape(ScriptedConfig())
    call = ModelCall("m", (user("go"),), sampling=Sampling(max_tokens=limit))
    free = tape.speak(answer, Finish.STOP, ModelCall("m", (user("go"),)), fingerprints(call.messages)[-1])
    spoken = tape.speak(answer, Finish.STOP, call, fingerprints(call.messages)[-1])
    assert len(spoken.ids) <= limit
    assert spoken.ids == free.ids[: len(spoken.ids)]
    assert (spoken.finish is Finish.STOP) == (len(free.ids) <= limit)
    assert free.message.text.startswith(spoken.message.text)


def test_a_stop_string_ends_the_answer_before_itself():
    call = ModelCall("m", (user("go"),), sampling=Sampling(stop=("STOP", "END")))
    spoken = Tape(ScriptedConfig()).speak(assistant("one END two STOP"), Finish.STOP, call, b"")
    assert spoken.message == assistant("one ")
    assert spoken.finish is Finish.STOP


def test_the_cache_keeps_its_budget_and_counts_what_it_forgot():
    tape = Tape(ScriptedConfig(), budget_bytes=5000)
    talk = [(user(f"question {turn} of a long talk"), assistant(f"answer {turn}")) for turn in range(40)]
    play(tape, talk)
    assert tape._bytes <= 5000
    assert tape._bytes == sum(segment.nbytes + 256 for segment in tape._segments.values())
    assert tape.forgotten > 0


@given(st.integers(1, 40), st.integers(-2, 60), st.integers(1, 4), st.integers(1, 3), st.sampled_from(["u1", "u2"]))
def test_routing_rows_are_a_function_of_place_and_id(length, start, layers, topk, dtype):
    config = ScriptedConfig(routed_layers=layers, routed_topk=topk, routed_dtype=dtype)
    ids = np.arange(1000, 1000 + length, dtype=np.int32)
    whole, part = route(ids, 0, config), route(ids, start, config)
    assert whole.rows.shape == (length - 1, layers, topk)
    assert part.start == min(max(start, 0), length - 1)
    assert np.array_equal(part.rows, whole.rows[part.start :])
    assert all(len(set(row)) == topk for layer in whole.rows.tolist() for row in layer)
    changed = ids.copy()
    changed[-1] += 1
    assert np.array_equal(route(changed, 0, config).rows, whole.rows), "the last id has no row"


def test_wide_experts_need_the_wide_type():
    ids = np.arange(300, dtype=np.int32)
    assert route(ids, 0, ScriptedConfig(routed_layers=2, routed_topk=2, routed_dtype="u2")).rows.max() > 255


@pytest.mark.parametrize("count", [0, 1, 100])
def test_logprobs_are_negative_and_survive_json(count):
    import msgspec

    tape = Tape(ScriptedConfig())
    spoken = tape.speak(assistant("é" * count), Finish.STOP, ModelCall("m", ()), b"")
    tokens = tape.tokens([np.zeros(1, np.int32)], spoken, 0)
    assert (tokens.logprobs < 0).all()
    assert msgspec.json.decode(msgspec.json.encode(tokens.logprobs.tolist())) == tokens.logprobs.tolist()
    assert len(tokens.logprobs) == len(tokens.completion_ids) == 2 * count + 1


def test_the_memory_of_conversations_is_bounded_and_forgets_the_longest_unasked():
    memory = Memory(limit=2)
    assert [memory.answered(key) for key in (b"a", b"b", b"a", b"c")] == [0, 0, 1, 0]
    assert (len(memory), memory.answers(b"a"), memory.answers(b"b")) == (2, 2, 0)
