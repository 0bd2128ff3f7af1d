"""Parsing a rendered answer gives the answer, byte for byte, however the tokens are cut into pieces."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollwright.renderers.contract import Status, ThinkingPolicy
from rollwright.wire import (
    Finish,
    Message,
    Reasoning,
    ReplyBuilder,
    Text,
    ToolCall,
    ToolSpec,
    WireError,
    assistant,
    reply_of,
    user,
)

from .cases import CASES, case_of
from .talks import Talker

every_case = pytest.mark.parametrize("case", CASES, ids=str)
ASK = [user("Well?")]


def canonical(case, message):
    """The message as its format can show it: edges that the template trims are trimmed, and nothing is empty."""
    if case.canonical is not None:
        return case.canonical(message)
    speech = case.family.speech
    text = speech.words(message.text)
    parts = []
    if speech.thinking is not None and (thought := speech.thinking.words(message.reasoning)):
        parts.append(Reasoning(thought))
    if speech.thinking is not None:
        text = speech.thinking.answer(text)
    if text and not (message.tool_calls and speech.calls_hide_text):
        parts.append(Text(text))
    return Message("assistant", (*parts, *message.tool_calls))


def answers(case, seed, count):
    """Messages that a model of this family could have meant, with the tools they were offered."""
    talker = Talker(seed, literals=case.literals, **case.talker)
    while count:
        tools = talker.specs()
        message = canonical(case, talker.answer(tools, turn=len(ASK)))
        if case.tells(message):
            yield message, tools
            count -= 1


def parsed(renderer, tape, ids, sizes=None):
    """The reply to `tape`, with its tokens fed in pieces of the given sizes."""
    parser, events, at = renderer.parser(tape), [], 0
    for size in sizes or [len(ids)]:
        events += parser.feed(ids[at : at + size])
        at += size
    events += parser.feed(ids[at:])
    return reply_of([*events, *parser.end()]), parser.attempts


@every_case
def test_parsing_gives_back_what_was_rendered(case):
    renderer = case.renderer(thinking=True)
    pieces = random.Random(3)
    for message, tools in answers(case, 11, 250):
        tape = renderer.render(ASK, tools)
        ids = renderer.answer(tape, message)
        reply, attempts = parsed(renderer, tape, ids)
        assert reply.message == message
        assert reply.finish is (Finish.TOOL_CALLS if message.tool_calls else Finish.STOP)
        assert [attempt.status for attempt in attempts] == [Status.OK] * len(message.tool_calls)
        sizes = [pieces.randint(1, 4) for _ in range(len(ids))]
        assert parsed(renderer, tape, ids, sizes)[0].message == message


@every_case
def test_the_answer_is_what_a_render_of_it_shows(case):
    """Where a full render begins with the prompt, the rest of it is the answer and the gap after it."""
    renderer = case.renderer(history=ThinkingPolicy.KEEP, thinking=True)
    same = 0
    for message, tools in answers(case, 12, 100):
        tape = renderer.render(ASK, tools)
        full = renderer.render([*ASK, message], tools, prompt=False).ids
        if np.array_equal(full[: len(tape)], tape.ids):
            rest = full[len(tape) :]
            answer = renderer.answer(tape, message)
            closes = np.flatnonzero(np.isin(rest, renderer.closing_ids))
            # Where nothing closes a turn, the token that ends the answer is not there yet.
            shown = rest[: closes[0] + 1] if len(closes) else [*rest, answer[-1]]
            assert answer.tolist() == list(shown)
            same += 1
    assert same > 20


@every_case
def test_a_cut_anywhere_gives_a_beginning_of_the_same_events(case):
    renderer = case.renderer(thinking=True)
    for message, tools in answers(case, 13, 15):
        tape = renderer.render(ASK, tools)
        ids = renderer.answer(tape, message)
        whole = parsed(renderer, tape, ids)[0].message.parts
        for cut in range(len(ids) + 1):
            builder = ReplyBuilder()
            for event in renderer.parser(tape).feed(ids[:cut]):
                builder.apply(event)
            assert begins(builder.message().parts, whole)


def begins(parts, whole):
    """All parts are those of the whole, except that the last may be a beginning."""
    if not parts:
        return True
    *settled, last = parts
    if len(parts) > len(whole) or settled != list(whole[: len(settled)]):
        return False
    other = whole[len(settled)]
    if isinstance(last, ToolCall) and isinstance(other, ToolCall):
        return (last.id, last.name) == (other.id, other.name) and other.arguments.startswith(last.arguments)
    return type(last) is type(other) and other.text.startswith(last.text)


@every_case
def test_tokens_after_the_end_are_refused(case):
    renderer = case.renderer()
    tape = renderer.render(ASK)
    ids = renderer.answer(tape, assistant("Yes."))
    parser = renderer.parser(tape)
    parser.feed(ids)
    with pytest.raises(WireError):
        parser.feed(ids[:1])


@settings(max_examples=150)
@given(st.text(st.characters(codec="utf-8"), max_size=30), st.lists(st.integers(1, 3), max_size=40))
def test_any_text_survives_any_cut(text, sizes):
    """Found by search and shrunk, where the random conversations above are only many."""
    renderer = case_of("qwen3").renderer()
    engine = renderer.engine
    tape = renderer.render(ASK)
    ids = renderer.answer(tape, assistant(text))
    assert parsed(renderer, tape, ids, sizes)[0].message.text == engine.decode(ids[:-1])


@settings(max_examples=300)
@given(st.lists(st.integers(0, 151_668), max_size=30), st.booleans())
def test_any_tokens_at_all_are_read_without_loss(tokens, cut):
    """Whatever a model samples, no character vanishes except tags and the newlines that the format puts beside them."""
    renderer = case_of("qwen3").renderer()
    ids = np.array([id for id in tokens if id not in renderer.stop_ids], np.int32)
    parser = renderer.parser(renderer.render(ASK))
    reply = reply_of([*parser.feed(ids), *parser.end(cut=cut)])
    assert reply.finish in (Finish.STOP, Finish.LENGTH, Finish.TOOL_CALLS)
    said = "".join(
        part.text if isinstance(part, Text | Reasoning) else part.name + part.arguments for part in reply.message.parts
    )
    bare = renderer.engine.decode(ids)
    for tag in ("<think>", "</think>", "<tool_call>", "</tool_call>"):
        bare, said = bare.replace(tag, ""), said.replace(tag, "")
    assert reply.message.tool_calls or bare.replace("\n", "") == said.replace("\n", "")


LOOK = (ToolSpec("look", "", {"type": "object", "properties": {"at": {"type": "string"}}}),)


@pytest.mark.parametrize(
    ("written", "status", "parts"),
    [
        ('{"name": "look", "arguments": {"at": 1}}', Status.OK, [ToolCall("call_1_0", "look", '{"at": 1}')]),
        ('{"arguments": {"at":  1}, "name": "look"}', Status.OK, [ToolCall("call_1_0", "look", '{"at":  1}')]),
        ('{"name":"look","arguments":{"at":"}"}}', Status.OK, [ToolCall("call_1_0", "look", '{"at":"}"}')]),
        ('{"name": "look", "arguments": {"at": }}', Status.BAD_ARGUMENTS, [ToolCall("call_1_0", "look", '{"at": }')]),
        ('{"name": "look", "arguments": "at"}', Status.BAD_ARGUMENTS, [ToolCall("call_1_0", "look", '"at"')]),
        (
            '{"name": "look", "arguments": {"at": 1}',
            Status.BAD_ARGUMENTS,
            [ToolCall("call_1_0", "look", '{"at": 1}\n')],
        ),
        ("look!", Status.MALFORMED, [Text("\n<tool_call>\nlook!\n</tool_call>")]),
        ("", Status.MALFORMED, [Text("\n<tool_call>\n\n</tool_call>")]),
    ],
)
def test_attempts_are_kept_with_what_became_of_them(written, status, parts):
    renderer = case_of("qwen3").renderer()
    tape = renderer.render(ASK, LOOK)
    ids = renderer.engine.encode(f"\n<tool_call>\n{written}\n</tool_call><|im_end|>")
    for sizes in (None, [1] * len(ids)):
        reply, attempts = parsed(renderer, tape, ids, sizes)
        assert list(reply.message.parts) == parts
        assert [attempt.status for attempt in attempts] == [status]
        assert attempts[0].text == f"\n{written}\n"


@pytest.mark.parametrize("arguments", ['{"at": "the', '{"at": {}', '{"at": 1}', "{", ""])
def test_a_call_that_breaks_off_is_kept(arguments):
    renderer = case_of("qwen3").renderer()
    tape = renderer.render(ASK, LOOK)
    ids = renderer.engine.encode(f'Let me see.\n<tool_call>\n{{"name": "look", "arguments": {arguments}')
    parser = renderer.parser(tape)
    reply = reply_of([*parser.feed(ids), *parser.end(cut=True)])
    assert reply.finish is Finish.LENGTH
    if arguments:
        assert reply.message.parts == (Text("Let me see."), ToolCall("call_1_0", "look", arguments))
        assert [attempt.status for attempt in parser.attempts] == [Status.UNCLOSED]
