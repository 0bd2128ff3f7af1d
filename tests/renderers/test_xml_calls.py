"""Calls as tags in tags: types come from the schema, values keep their newlines, and nothing is lost."""

import json

import pytest

from rollwright.renderers.contract import Status
from rollwright.wire import Finish, Message, Text, ToolCall, ToolSpec, reply_of, user

from .cases import case_of

FIELDS = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "flag": {"type": "boolean"},
    "list": {"type": "array"},
    "maybe": {"type": ["string", "null"]},
    "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    "any": {},
}
TOOLS = (ToolSpec("do", "", {"type": "object", "properties": FIELDS}),)
ASK = [user("Well?")]


def read(body, *, template="qwen3_6", close="\n</tool_call><|im_end|>", cut=False):
    """Parse a call whole and token by token; both must agree."""
    renderer = case_of(template).renderer(thinking=False)
    tape = renderer.render(ASK, TOOLS)
    ids = renderer.engine.encode(f"<tool_call>\n{body}{close}")
    outcomes = []
    for step in (len(ids), 1):
        parser, events = renderer.parser(tape), []
        for at in range(0, len(ids), step):
            events += parser.feed(ids[at : at + step])
        outcomes.append((reply_of([*events, *parser.end(cut=cut)]), parser.attempts))
    assert outcomes[0] == outcomes[1]
    return outcomes[0]


def function(**values):
    lines = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in values.items())
    return f"<function=do>\n{lines}</function>"


@pytest.mark.parametrize(
    ("name", "written", "meant"),
    [
        ("text", "42", '"42"'),
        ("text", "true", '"true"'),
        ("text", "", '""'),
        ("text", "\n two lines\n\n", '"\\n two lines\\n\\n"'),
        ("text", 'a "quote" \\ and é', '"a \\"quote\\" \\\\ and é"'),
        ("count", "42", "42"),
        ("count", "1e3", "1e3"),
        ("flag", "true", "true"),
        ("flag", "True", "true"),
        ("list", '[1,  "two"]', '[1,  "two"]'),
        ("maybe", "null", '"null"'),
        ("either", "7", '"7"'),
        ("any", "[1]", "[1]"),
        ("any", "plain words", '"plain words"'),
        ("unheard_of", "7", '"7"'),
    ],
)
def test_the_schema_tells_what_a_value_is(name, written, meant):
    reply, attempts = read(function(**{name: written}))
    assert reply.message.parts == (ToolCall("call_1_0", "do", f'{{"{name}": {meant}}}'),)
    assert [attempt.status for attempt in attempts] == [Status.OK]
    assert json.loads(reply.message.tool_calls[0].arguments)[name] == json.loads(meant)


def test_parameters_become_one_object():
    reply, _ = read(function(text="a", count="1", flag="false"))
    assert reply.message.tool_calls[0].arguments == '{"text": "a", "count": 1, "flag": false}'
    assert read(function())[0].message.tool_calls[0].arguments == "{}"


@pytest.mark.parametrize(
    ("body", "status", "parts"),
    [
        (function(count="many"), Status.BAD_ARGUMENTS, [ToolCall("call_1_0", "do", '{"count": "many"}')]),
        (
            "<function=do>\nwords\n</function>",
            Status.BAD_ARGUMENTS,
            [ToolCall("call_1_0", "do", "words\n</function>\n")],
        ),
        ('{"name": "do"}', Status.MALFORMED, [Text('<tool_call>\n{"name": "do"}\n</tool_call>')]),
        ("", Status.MALFORMED, [Text("<tool_call>\n\n</tool_call>")]),
    ],
)
def test_attempts_are_kept_with_what_became_of_them(body, status, parts):
    reply, attempts = read(body)
    assert list(reply.message.parts) == parts
    assert [attempt.status for attempt in attempts] == [status]


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ("<function=do>\n<parameter=text>\nhalf a", '{"text": "half a'),
        ('<function=do>\n<parameter=text>\na "b', '{"text": "a \\"b'),
        ("<function=do>\n<parameter=text>\nwhole\n</parameter>\n", '{"text": "whole"\n'),
    ],
)
def test_a_call_that_breaks_off_is_kept(body, arguments):
    reply, attempts = read(body, close="", cut=True)
    assert reply.message.parts == (ToolCall("call_1_0", "do", arguments),)
    assert reply.finish is Finish.LENGTH
    assert [attempt.status for attempt in attempts] == [Status.UNCLOSED]


def test_arguments_that_are_no_object_are_shown_as_they_stand():
    """No template can show them; a render must not fail on what a model once wrote."""
    renderer = case_of("qwen3_6").renderer()
    message = Message("assistant", (ToolCall("c", "do", '{"text": '),))
    shown = renderer.engine.decode(renderer.render([*ASK, message, user("Hm?")], TOOLS).ids)
    assert '<function=do>\n{"text": </function>' in shown


@pytest.mark.parametrize(("written", "told"), [("\n\n", ""), ("\n", "\n"), ("\n\n\n", "\n"), (" \n\n", " "), ("", "")])
def test_only_what_the_format_puts_before_a_call_vanishes(written, told):
    renderer = case_of("qwen3_6").renderer(thinking=False)
    tape = renderer.render(ASK, TOOLS)
    ids = renderer.engine.encode(f"Look:{written}<tool_call>\n{function()}\n</tool_call><|im_end|>")
    parser = renderer.parser(tape)
    assert reply_of([*parser.feed(ids), *parser.end()]).message.text == f"Look:{told}"
