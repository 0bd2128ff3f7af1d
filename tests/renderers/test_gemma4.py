"""Gemma 4: what the shared tests of the families do not ask."""

import pytest

from rollwright.renderers.contract import PARITY, Declined, Reason, Status, ThinkingPolicy
from rollwright.wire import (
    Image,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
    UsageError,
    assistant,
    reply_of,
    system,
    tool_result,
    user,
)

from .cases import case_of

LOOK = ToolSpec("look", "Looks.", {"type": "object", "properties": {"at": {"type": "string"}}})
CALL = ToolCall("c", "look", '{"at": "here"}')
SCHEMAS = [
    {},
    {"type": "object"},
    {"properties": {"a": {"type": "string"}}},
    {"type": "object", "properties": {"B": {"type": "string", "enum": ["x", "y"]}, "a": {"type": "integer"}}},
    {
        "type": "object",
        "properties": {"a": {"type": "string", "description": "d", "nullable": True}},
        "required": ["a"],
    },
    {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string", "default": None}}}},
    {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": ["string", "null"], "enum": [1, None]}}},
    },
    {"type": "object", "properties": {"a": {"type": "array", "items": {}}, "b": {"enum": [1, 2]}}},
    {
        "type": "object",
        "properties": {
            "rows": {
                "type": "array",
                "description": "Rows.",
                "items": {
                    "type": "object",
                    "required": ["x", "y"],
                    "properties": {"y": {"type": "number"}, "x": {"type": "object", "properties": {"k": {}}}},
                    "additionalProperties": {"k": {"deep": [True, 1.5]}},
                },
            },
            "free": {"type": "object", "additionalProperties": False, "required": ["q"], "q": {"type": "string"}},
            "list": {"type": ["string", "null"]},
            "none": None,
        },
    },
]


@pytest.mark.parametrize("at", range(len(SCHEMAS)))
def test_a_schema_is_shown_as_the_template_shows_it(at):
    case = case_of("gemma4_v5")
    tools = (ToolSpec("look", "", SCHEMAS[at]), ToolSpec("f", " Words.\n", SCHEMAS[-1]))
    renderer = case.renderer(literal=PARITY)
    text = case.oracle().text([user("Well?")], tools)
    assert renderer.engine.decode(renderer.render([user("Well?")], tools).ids) == text


def said(*more):
    return [user("Well?"), *more]


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize(
    "talk",
    [
        said(assistant("", CALL), user("Never mind.")),
        said(assistant("Hm.", CALL), user("Never mind."), assistant("So?")),
        said(assistant("", CALL), tool_result("nobody", "Rain.")),
        said(assistant("Hm.", CALL), tool_result("c", "Rain.")),
        said(assistant("Hm.", CALL), tool_result("c", "Rain."), assistant("Rain."), user("And?")),
        said(assistant("", CALL), tool_result("c", "Rain."), assistant("", CALL), tool_result("c", "")),
        said(assistant("A."), assistant("B."), user("C.")),
        said(Message("assistant", (Reasoning("So."), CALL)), tool_result("c", "Rain."), system("Be brief.")),
        said(assistant("", CALL), Message("tool", (ToolResult("c", (Text("a"), Image("0" * 64, "image/png"))),))),
    ],
)
def test_turns_go_on_as_the_template_has_them(talk, thinking):
    case = case_of("gemma4_v5")
    renderer = case.renderer(literal=PARITY, thinking=thinking)
    prompt = talk[-1].role != "assistant"
    text = case.oracle().text(talk, (LOOK,), prompt=prompt, enable_thinking=thinking)
    assert renderer.engine.decode(renderer.render(talk, (LOOK,), prompt=prompt).ids) == text


def test_the_token_that_ends_a_call_opens_its_result():
    renderer = case_of("gemma4_v5").renderer()
    tape = renderer.render(said(), (LOOK,))
    answer = assistant("", CALL)
    sampled = tape.sample(renderer.answer(tape, answer))
    longer = renderer.extend(sampled, [tool_result("call_1_0", "Rain.")])
    assert renderer.engine.decode(longer.added) == 'response:look{value:<|"|>Rain.<|"|>}<tool_response|>'
    # The turn ends only where somebody else speaks.
    asked = renderer.extend(sampled, [tool_result("call_1_0", "Rain."), user("And?")])
    assert renderer.engine.decode(asked.added).endswith("<turn|>\n<|turn>user\nAnd?<turn|>\n<|turn>model\n")


@pytest.mark.parametrize(
    ("answer", "added", "reason"),
    [
        (assistant("Hm.", CALL), [tool_result("c", "Rain.")], Reason.HEAD_MOVED),
        (assistant("Hm."), [tool_result("c", "Rain.")], Reason.ROLE_NOT_APPENDED),
        (assistant("", CALL), [user("And?"), tool_result("c", "Rain.")], Reason.ROLE_NOT_APPENDED),
        (assistant("", CALL), [user("And?")], Reason.STOPPED_OTHERWISE),
        (Message("assistant", (Reasoning("So."), Text("Hm."))), [user("And?")], Reason.THINKING_DROPPED),
    ],
)
def test_what_would_move_is_declined(answer, added, reason):
    renderer = case_of("gemma4_v5").renderer()
    tape = renderer.render(said(), (LOOK,))
    assert renderer.extend(tape.sample(renderer.answer(tape, answer)), added) == Declined(reason)


def test_asked_to_think_the_model_is_in_the_middle_of_it_after_results():
    renderer = case_of("gemma4_v5").renderer(thinking=True)
    tape = renderer.render(said(), (LOOK,))
    tape = renderer.extend(tape.sample(renderer.answer(tape, assistant("", CALL))), [tool_result("call_1_0", "Rain.")])
    assert renderer.engine.decode(tape.added).endswith("<|channel>thought\n")
    answer = Message("assistant", (Reasoning("thought\n so"), Text("Rain.")))
    ids = renderer.answer(tape, answer)
    assert renderer.engine.decode(ids) == "thought\n so\n<channel|>Rain.<turn|>"
    parser = renderer.parser(tape)
    assert reply_of([*parser.feed(ids), *parser.end()]).message == answer
    assert renderer.extend(tape.sample(ids), [user("And?")]) == Declined(Reason.THINKING_DROPPED)
    keeping = case_of("gemma4_v5").renderer(thinking=True, history=ThinkingPolicy.KEEP)
    assert not isinstance(keeping.extend(tape.sample(ids), [user("And?")]), Declined)


@pytest.mark.parametrize(
    ("written", "arguments", "status"),
    [
        ("", "{}", Status.OK),
        ('at:<|"|>a {b}, [c]: "d"\n<|"|>', '{"at": "a {b}, [c]: \\"d\\"\\n"}', Status.OK),
        ('b:[1,{x y:<|"|><|"|>},[]],a:{},c:-1.50', '{"b": [1, {"x y": ""}, []], "a": {}, "c": -1.50}', Status.OK),
        ("a:true,b:null", '{"a": true, "b": null}', Status.OK),
        ("a: 1", '{"a": 1}', Status.OK),
        ("a:1,", "a:1,}", Status.BAD_ARGUMENTS),
        ("a:maybe", "a:maybe}", Status.BAD_ARGUMENTS),
        ("a:NaN", "a:NaN}", Status.BAD_ARGUMENTS),
        ("a:1 2", "a:1 2}", Status.BAD_ARGUMENTS),
        ("a:[1", "a:[1}", Status.BAD_ARGUMENTS),
        ('a:<|"|>x', 'a:<|"|>x}', Status.BAD_ARGUMENTS),
        ("a:1}{", "a:1}{}", Status.BAD_ARGUMENTS),
        ("a:" + "[" * 5000, "a:" + "[" * 5000 + "}", Status.BAD_ARGUMENTS),
    ],
)
def test_arguments_are_read_or_kept_as_they_are(written, arguments, status):
    renderer = case_of("gemma4_v5").renderer()
    tape = renderer.render(said(), (LOOK,))
    ids = renderer.engine.encode(f"<|tool_call>call:look{{{written}}}<tool_call|><|tool_response>")
    for size in (1, 3, len(ids)):
        parser = renderer.parser(tape)
        events = [event for at in range(0, len(ids), size) for event in parser.feed(ids[at : at + size])]
        assert reply_of([*events, *parser.end()]).message == assistant("", ToolCall("call_1_0", "look", arguments))
        assert [attempt.status for attempt in parser.attempts] == [status]


def test_results_that_nobody_called_for_are_refused():
    renderer = case_of("gemma4_v5").renderer()
    with pytest.raises(UsageError, match="results"):
        renderer.render([user("Well?"), tool_result("c", "Rain.")])
