"""Extending by a turn gives what a full render gives, keeps what was sampled, and says why when it will not."""

import tracemalloc

import numpy as np
import pytest

from rollwright.renderers.contract import Declined, Reason, ThinkingPolicy
from rollwright.telemetry import Metrics
from rollwright.wire import Message, Text, ToolSpec, UsageError, assistant, system, tool_result, user

from .cases import CASES, case_of

every_case = pytest.mark.parametrize("case", CASES, ids=str)


MOVES = {Reason.HEAD_MOVED, Reason.ROLE_NOT_APPENDED}
"""Reasons of formats that write a turn by what lies elsewhere in the conversation, even if it comes out the same."""


def turns(messages):
    """For each answer that others spoke after: its index, and where the next answer would begin."""
    for at, message in enumerate(messages):
        if message.role == "assistant":
            stop = at + 1
            while stop < len(messages) and messages[stop].role != "assistant":
                stop += 1
            if stop > at + 1:
                yield at, stop


def continued(renderer, messages, tools, at, stop):
    """A turn three ways: the tape up to the answer, the full render after it, and the extension. None where the full
    render shows the beginning in another way, so that no extension could equal it."""
    try:
        prior = renderer.render(messages[:at], tools)
        full = renderer.render(messages[:stop], tools).ids
    except UsageError:
        return None
    if not np.array_equal(full[: len(prior)], prior.ids):
        return None
    close = np.flatnonzero(np.isin(full[len(prior) :], renderer.closing_ids))
    if not len(close):
        # The template ends this answer with a token that nobody samples.
        return None
    sampled = full[len(prior) : len(prior) + int(close[0]) + 1]
    return full, renderer.extend(prior.sample(sampled), messages[at + 1 : stop])


@every_case
@pytest.mark.parametrize("history", ThinkingPolicy)
def test_an_extension_equals_the_full_render(case, history):
    renderer = case.renderer(history=history)
    equal = dropped = 0
    for messages, tools in case.talks(7, 45):
        for at, stop in turns(messages):
            outcome = continued(renderer, messages, tools, at, stop)
            if outcome is None or (case.late_text and any(said.text and said.tool_calls for said in messages[:stop])):
                continue
            full, longer = outcome
            if isinstance(longer, Declined):
                assert longer.reason in case.declines
                dropped += longer.reason is Reason.THINKING_DROPPED
                continue
            assert longer.ids.tolist() == full.tolist()
            equal += 1
    assert equal > 12
    if history is ThinkingPolicy.KEEP:
        assert dropped == 0


@every_case
def test_what_the_template_leaves_alone_is_extended(case):
    """Completeness: where the render of an answer is the beginning of the longer render, no reason is good enough."""
    renderer = case.renderer()
    checked = 0
    for messages, tools in case.talks(8, 60):
        for at, stop in turns(messages):
            try:
                prior = renderer.render(messages[:at], tools)
                told = renderer.render(messages[: at + 1], tools, prompt=False).ids
                full = renderer.render(messages[:stop], tools).ids
            except UsageError:
                continue
            if not (np.array_equal(told[: len(prior)], prior.ids) and np.array_equal(full[: len(told)], told)):
                continue
            sampled = renderer.answer(prior, messages[at])
            longer = renderer.extend(prior.sample(sampled), messages[at + 1 : stop])
            if isinstance(longer, Declined) and longer.reason in case.declines & MOVES:
                continue
            assert not isinstance(longer, Declined), longer
            assert longer.ids.tolist() == full.tolist()
            checked += 1
    assert checked > 6


@every_case
def test_an_answer_that_was_cut_is_closed_first(case):
    renderer = case.renderer(history=ThinkingPolicy.KEEP)
    prior = renderer.render([user("Hello.")])
    whole = renderer.answer(prior, assistant("A long story about a fish"))
    cut = prior.sample(whole[:-1])
    longer, unbroken = (renderer.extend(tape, [user("Go on.")]) for tape in (cut, prior.sample(whole)))
    assert longer.ids.tolist() == unbroken.ids.tolist()
    assert longer.sampled_mask().sum() == len(whole) - 1
    assert longer.added[0] == renderer.stop_ids[0]


@every_case
def test_what_was_sampled_is_never_tokenized_again(case):
    """An odd spelling of the answer, which no encoder would choose, stays on the tape id by id."""
    renderer = case.renderer(history=ThinkingPolicy.KEEP)
    prior = renderer.render([user("Spell.")])
    odd = np.concatenate([renderer.engine.encode(letter) for letter in "hello world"])
    longer = renderer.extend(prior.sample(odd), [user("Thanks.")])
    assert longer.ids[len(prior) : len(prior) + len(odd)].tolist() == odd.tolist()
    assert longer.ids.tolist() == [*prior.ids, *odd, *longer.added]


def test_a_branch_leaves_the_other_alone():
    renderer = case_of("qwen3").renderer()
    tape = renderer.render([user("Pick.")])
    tape = tape.sample(renderer.answer(tape, assistant("Left or right?")))
    left = renderer.extend(tape, [user("Left.")])
    right = renderer.extend(tape, [user("Right, and far.")])
    first = left.ids.copy()
    assert right.ids[: len(tape)].tolist() == tape.ids.tolist()
    assert left.ids.tolist() == first.tolist()
    assert left.ids.tolist() != right.ids.tolist()
    with pytest.raises(ValueError, match="read-only"):
        left.ids[0] = 0


def test_a_line_of_tapes_shares_one_buffer():
    renderer = case_of("qwen3").renderer()
    tape = renderer.render([user("Count.")])
    for number in range(50):
        assert len(tape.ids) == len(tape)
        tape = tape.sample(renderer.answer(tape, assistant(str(number))))
        tape = renderer.extend(tape, [user("Next.")])
    longer = renderer.extend(tape.sample(renderer.answer(tape, assistant("Done."))), [user("Thanks.")])
    assert len(tape.ids) == len(tape)
    assert len(longer.ids) == len(longer)
    assert np.shares_memory(tape.ids, longer.ids)


def test_an_extension_takes_memory_for_what_is_new_only():
    renderer = case_of("qwen3").renderer()
    tape = renderer.render([user("word " * 80_000)])
    assert len(tape) > 80_000
    tape = tape.sample(renderer.answer(tape, assistant("Yes.")))
    renderer.extend(tape, [user("Next.")])
    tracemalloc.start()
    try:
        longer = renderer.extend(tape, [user("Next.")])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50_000
    assert len(longer) == len(tape) + len(longer.added)


TOOLS = (ToolSpec("look", "Looks.", {"type": "object", "properties": {"at": {"type": "string"}}}),)
THOUGHT = "<think>\nHm.\n</think>\n\nYes.<|im_end|>"


@pytest.mark.parametrize(
    ("reason", "spoken", "added", "tools"),
    [
        (Reason.TOOLS_CHANGED, "Yes.<|im_end|>", [user("And?")], ()),
        (Reason.THINKING_DROPPED, THOUGHT, [user("And?")], None),
        (Reason.THINKING_DROPPED, THOUGHT, [tool_result("", "Rain."), user("And?")], TOOLS),
        (Reason.STOPPED_OTHERWISE, "Yes.<|endoftext|>", [user("And?")], None),
        (Reason.ROLE_NOT_APPENDED, "Yes.<|im_end|>", [assistant("No."), user("And?")], None),
    ],
)
def test_a_declined_extension_has_its_reason_and_is_counted(reason, spoken, added, tools):
    metrics = Metrics()
    renderer = case_of("qwen3").renderer(metrics=metrics)
    tape = renderer.render([user("Well?")], TOOLS).sample(renderer.engine.encode(spoken))
    assert renderer.extend(tape, added, tools) == Declined(reason)
    counted = metrics.counter("renderer_declined_total", family="qwen3", reason=reason)
    assert counted.read() == 1


def test_a_tape_that_waits_for_an_answer_is_not_extended():
    renderer = case_of("qwen3").renderer()
    tape = renderer.render([user("Well?")])
    assert renderer.extend(tape, [user("Hello?")]) == Declined(Reason.NOT_SAMPLED)
    with pytest.raises(UsageError):
        renderer.render([user("Well?")], prompt=False).sample(renderer.engine.encode("Yes."))


def test_reasoning_stays_while_tools_answer():
    renderer = case_of("qwen3").renderer()
    tape = renderer.render([user("Well?")], TOOLS).sample(renderer.engine.encode(THOUGHT))
    longer = renderer.extend(tape, [tool_result("", "Rain.")], TOOLS)
    # A query later still drops it, however long ago it was.
    longer = longer.sample(renderer.engine.encode("No reasoning here.<|im_end|>"))
    assert renderer.extend(longer, [user("And?")]) == Declined(Reason.THINKING_DROPPED)


def test_an_empty_block_in_the_prompt_is_kept_only_where_asked():
    """Qwen3 asked not to think puts an empty block into the prompt, and its template leaves it out of the past."""
    talk = [user("Well?"), Message("assistant", (Text("Yes."),)), user("And?")]
    for history, extends in ((ThinkingPolicy.TEMPLATE, False), (ThinkingPolicy.KEEP, True)):
        renderer = case_of("qwen3").renderer(thinking=False, history=history)
        tape = renderer.render(talk[:1])
        longer = renderer.extend(tape.sample(renderer.answer(tape, talk[1])), talk[2:])
        if extends:
            assert longer.ids.tolist() == renderer.render(talk).ids.tolist()
        else:
            assert longer == Declined(Reason.THINKING_DROPPED)


@pytest.mark.parametrize(("template", "taken"), [("qwen3", True), ("qwen3_6", False)])
def test_a_late_system_message_is_taken_where_the_template_takes_it(template, taken):
    renderer = case_of(template).renderer(history=ThinkingPolicy.KEEP)
    tape = renderer.render([user("Well?")])
    tape = tape.sample(renderer.answer(tape, assistant("Yes.")))
    longer = renderer.extend(tape, [system("Be brief."), user("And?")])
    assert longer == Declined(Reason.ROLE_NOT_APPENDED) or taken
    if taken:
        assert "Be brief." in renderer.engine.decode(longer.added)
