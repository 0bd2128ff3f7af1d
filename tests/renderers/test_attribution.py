"""Every token belongs to somebody: runs cover the tape, and contents are where their words are."""

import numpy as np
import pytest

from rollwright.wire import Image, Message, Reasoning, Text, ToolCall, ToolSpec, UsageError, system, tool_result, user

from .cases import CASES, case_of

every_case = pytest.mark.parametrize("case", CASES, ids=str)
TOOLS = (ToolSpec("look", "Looks.", {"type": "object", "properties": {"at": {"type": "string"}}}),)


def contents(renderer, tape):
    ids = tape.ids
    found = [
        (run.message, run.role, renderer.engine.decode(ids[run.start : run.stop])) for run in tape.runs if run.content
    ]
    return [row for row in found if row[0] >= 0]


@every_case
def test_runs_cover_the_tape_without_a_gap(case):
    renderer = case.renderer()
    for messages, tools in case.talks(21, 16):
        try:
            tape = renderer.render(messages, tools)
        except UsageError:
            continue
        runs = tape.runs
        assert runs[0].start == 0
        assert runs[-1].stop == len(tape)
        assert [run.stop for run in runs[:-1]] == [run.start for run in runs[1:]]
        assert all(run.start < run.stop for run in runs)
        assert len(tape.content_mask()) == len(tape)
        assert not tape.sampled_mask().any()


@pytest.mark.parametrize("accent", ["é", "e\u0301"], ids=["composed", "decomposed"])
def test_contents_are_where_their_words_are(accent):
    """Also where the tokenizer writes a character in another way than it was given."""
    renderer = case_of("qwen3").renderer()
    messages = [
        system(f"Be caf{accent}."),
        user(f"Wh{accent}re?"),
        Message("assistant", (Reasoning(f"H{accent}m."), Text("Let me look."), ToolCall("c", "look", '{"at": "it"}'))),
        tool_result("c", f"N{accent}where {accent}."),
    ]
    expected = [
        (0, "system", "Be café."),
        (1, "user", "Whére?"),
        (2, "assistant", "Hém."),
        (2, "assistant", "Let me look."),
        (2, "assistant", "look"),
        (2, "assistant", '{"at": "it"}'),
        (3, "tool", "Néwhere é."),
    ]
    found = contents(renderer, renderer.render(messages, TOOLS))
    assert [row[:2] for row in found] == [row[:2] for row in expected]
    for (*_, text), (*_, words) in zip(found, expected, strict=True):
        # A token on the border (a full stop and a newline, a space and a brace) belongs to where it begins.
        assert words.strip('{}".') in text
        assert abs(len(text) - len(words)) <= 3


def test_a_text_that_the_tokenizer_changes_beyond_prediction_shifts_no_other():
    """The accent composes with the last letter of what stands before it, so no piece alone tells its length."""
    renderer = case_of("qwen3").renderer()
    joined = Message("assistant", (Reasoning("so"), ToolCall("c", "look", '{"at": "e'), ToolCall("d", "\u0301x", "{}")))
    tape = renderer.render([user("a"), joined, tool_result("c", "Nothing here.")], TOOLS)
    message, role, text = contents(renderer, tape)[-1]
    assert (message, role) == (2, "tool")
    assert text.startswith("Nothing here.")


def test_only_what_was_sampled_can_be_trained():
    renderer = case_of("qwen3").renderer()
    prior = renderer.render([user("Well?")])
    answer = renderer.answer(prior, Message("assistant", (Text("Yes."),)))
    tape = renderer.extend(prior.sample(answer), [user("And?")])
    mask = tape.sampled_mask()
    assert np.flatnonzero(mask).tolist() == list(range(len(prior), len(prior) + len(answer)))
    assert tape.ids[mask].tolist() == answer.tolist()


@pytest.mark.parametrize("template", ["qwen3_6"])
def test_images_are_placeholders_with_their_hashes(template):
    case = case_of(template)
    renderer = case.renderer()
    messages = [
        Message("user", (Text("What is "), Image("ab" * 32, "image/png"), Text(" and "), Image("cd" * 32, "image/png")))
    ]
    tape = renderer.render(messages)
    assert tape.ids.tolist() == renderer.engine.encode(case.oracle().text(messages)).tolist()
    assert [image.sha256 for image in tape.images] == ["ab" * 32, "cd" * 32]
    shown = [renderer.engine.decode(tape.ids[image.start : image.stop]) for image in tape.images]
    assert shown == ["<|vision_start|><|image_pad|><|vision_end|>"] * 2
