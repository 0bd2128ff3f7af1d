"""What is peculiar to single formats: how they list tools, why they decline, what their parsers make of odd answers."""

import random

import pytest

from rollwright.renderers.contract import Declined, Reason, Status
from rollwright.wire import (
    Finish,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolSpec,
    assistant,
    reply_of,
    system,
    tool_result,
    user,
)

from .cases import case_of
from .oracle import Refused

NEMO = "mistralai-Mistral-Nemo-Instruct-2407"
LOOK = (ToolSpec("look", "Looks.", {"type": "object", "properties": {"at": {"type": "string"}}}),)
CALL = Message("assistant", (ToolCall("abcdefghi", "look", '{"at": "it"}'),))


class Schemas:
    """Random JSON schemas, with all that the listings of tools have a line for."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def schema(self, depth=0):
        pick = self.random
        kind = pick.choice(["string", "integer", "number", "boolean", "array", "object", "null", "several", "one", ""])
        made = {"type": kind} if kind not in ("several", "one", "") else {}
        if kind == "several":
            made["type"] = pick.choice([["string", "null"], ["object", "object"], ["string"]])
        if kind == "one":
            made["oneOf"] = [{"type": "string"}, *(self.schema(depth + 1) for _ in range(depth < 2))]
        if kind == "string" and pick.random() < 0.3:
            made["enum"] = ["a", "b"][: pick.randint(1, 2)]
        if kind == "array" and depth < 3 and pick.random() < 0.7:
            made["items"] = self.schema(depth + 1)
        if kind == "object" and depth < 3:
            made["properties"] = {f"q{at}": self.schema(depth + 1) for at in range(pick.randint(0, 2))}
            made["required"] = list(made["properties"])[: pick.randint(0, 1)]
        extras = {"nullable": True, "description": " does it ", "minimum": 3}
        made |= {key: value for key, value in extras.items() if pick.random() < 0.25}
        if pick.random() < 0.3:
            made["default"] = "a" if {"enum", "oneOf"} & made.keys() else pick.choice([1, "x", None, [1]])
        return made

    def tool(self):
        fields = {f"p{at}": self.schema() for at in range(self.random.randint(0, 3))}
        schema = {"type": "object", "properties": fields, "required": list(fields)[:1], "additionalProperties": False}
        return ToolSpec("f", self.random.choice(["Does it.", " so\nmuch "]), schema)


@pytest.mark.parametrize("name", ["gptoss", "nemotron_3_nano", NEMO, "GLM-4.7-Flash", "glm-5.2", "gemma4_v5"])
def test_tools_are_listed_as_the_template_lists_them(name):
    case, schemas, listed = case_of(name), Schemas(4), 0
    oracle, renderer = case.oracle(), case.renderer()
    for _ in range(150):
        tools = [schemas.tool()]
        try:
            text = oracle.text([user("x")], tools)
        except Refused:
            continue
        assert renderer.engine.decode(renderer.render([user("x")], tools).ids) == text
        listed += 1
    assert listed > 140


@pytest.mark.parametrize(
    ("name", "talk", "tools", "said", "added", "reason"),
    [
        ("gemma3", [user("a")], (), assistant("b"), [user("c"), user("d")], Reason.ROLE_NOT_APPENDED),
        (NEMO, [user("a")], (), assistant("b"), [user("c"), user("d")], Reason.ROLE_NOT_APPENDED),
        (NEMO, [user("a")], LOOK, CALL, [user("c")], Reason.ROLE_NOT_APPENDED),
        (NEMO, [user("a")], LOOK, assistant("b"), [user("c")], Reason.HEAD_MOVED),
        (NEMO, [system("s"), user("a")], (), assistant("b"), [user("c")], Reason.HEAD_MOVED),
        ("gptoss", [user("a")], (), assistant("b"), [user("c")], Reason.THINKING_DROPPED),
        ("glm4moe", [user("a")], LOOK, CALL, [user("c")], Reason.STOPPED_OTHERWISE),
        ("GLM-4.7-Flash", [user("a")], LOOK, assistant("b"), [tool_result("x", "y")], Reason.STOPPED_OTHERWISE),
        ("nemotron_3_nano", [user("a")], (), assistant("b"), [user("c")], Reason.THINKING_DROPPED),
    ],
)
def test_each_format_has_its_reasons(name, talk, tools, said, added, reason):
    renderer = case_of(name).renderer()
    tape = renderer.render(talk, tools)
    assert renderer.extend(tape.sample(renderer.answer(tape, said)), added) == Declined(reason)


@pytest.mark.parametrize(
    "name", [NEMO, "gptoss", "glm4moe", "GLM-4.7-Flash", "glm-5.3", "gemma4_v5", "nemotron_3_nano"]
)
def test_a_turn_of_tools_extends(name):
    renderer = case_of(name).renderer(thinking=True)
    tape = renderer.render([user("a")], LOOK)
    said = Message("assistant", (*([] if name == NEMO else [Reasoning("Hm.")]), *CALL.parts))
    sampled = tape.sample(renderer.answer(tape, said), {"abcdefghi": "look"})
    longer = renderer.extend(sampled, [tool_result("abcdefghi", "There.")])
    assert (
        longer.ids.tolist() == renderer.render([user("a"), said, tool_result("abcdefghi", "There.")], LOOK).ids.tolist()
    )


def test_asked_not_to_think_an_empty_block_is_no_reason():
    """These templates leave the empty block of the prompt where it is."""
    for name in ("glm4moe", "GLM-4.7-Flash", "nemotron_3_nano", "nemotron_3_ultra"):
        renderer = case_of(name).renderer(thinking=False)
        tape = renderer.render([user("a")])
        sampled = renderer.answer(tape, assistant("b"))
        parser = renderer.parser(tape)
        assert reply_of([*parser.feed(sampled), *parser.end()]).message == assistant("b")
        longer = renderer.extend(tape.sample(sampled), [user("c")])
        assert longer.ids.tolist() == renderer.render([user("a"), assistant("b"), user("c")]).ids.tolist()


def read(name, text, *, cut=False):
    """The parts, the end and the attempts of an answer, read at once and token by token."""
    renderer = case_of(name).renderer(thinking=True)
    tape = renderer.render([user("a")], LOOK)
    ids = renderer.engine.encode(text)
    found = []
    for size in (len(ids), 1):
        parser, events = renderer.parser(tape), []
        for at in range(0, len(ids), size):
            events += parser.feed(ids[at : at + size])
        reply = reply_of([*events, *parser.end(cut=cut)])
        found.append((reply.message.parts, reply.finish, [attempt.status for attempt in parser.attempts]))
    assert found[0] == found[1]
    return found[0]


HARMONY = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
ASIDE = "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant"


@pytest.mark.parametrize(
    ("text", "parts", "statuses"),
    [
        (
            HARMONY + '<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"at": "it"}<|call|>',
            (Reasoning("Hm."), ToolCall("call_1_0", "look", '{"at": "it"}')),
            [Status.OK],
        ),
        (
            HARMONY + " to=functions.look<|channel|>commentary json<|message|>{at}<|call|>",
            (Reasoning("Hm."), ToolCall("call_1_0", "look", "{at}")),
            [Status.BAD_ARGUMENTS],
        ),
        (
            HARMONY + ASIDE + "<|channel|>final<|message|>No.",
            (Reasoning("Hm."), Text("Let me see.No.")),
            [],
        ),
        (
            '<|channel|>commentary to=functions.look<|message|>{"a',
            (ToolCall("call_1_0", "look", '{"a'),),
            [Status.UNCLOSED],
        ),
        ("No header.<|return|>", (Text("No header."),), []),
    ],
)
def test_channels_are_read_as_the_model_writes_them(text, parts, statuses):
    assert read("gptoss", text, cut=True)[::2] == (parts, statuses)


@pytest.mark.parametrize(
    ("text", "parts", "statuses"),
    [
        (
            'So:[TOOL_CALLS] [{"arguments": {"at": "}"}, "name": "look", "id": "abcdefghi"}, {"name": "look"}]</s>',
            (Text("So:"), ToolCall("abcdefghi", "look", '{"at": "}"}'), ToolCall("call_1_1", "look", "")),
            [Status.OK, Status.BAD_ARGUMENTS],
        ),
        (
            '[TOOL_CALLS][{"name": "look", "arguments": {"at": "\\"{\\\\"}, "id": "abcde',
            (ToolCall("call_1_0", "look", '{"at": "\\"{\\\\"}'),),
            [Status.UNCLOSED],
        ),
        ("[TOOL_CALLS]look!</s>", (Text("[TOOL_CALLS]look!"),), [Status.MALFORMED]),
        ('[TOOL_CALLS][{"at": 1}]</s>', (Text('[TOOL_CALLS]{"at": 1}'),), [Status.MALFORMED]),
    ],
)
def test_lists_of_calls_keep_what_became_of_them(text, parts, statuses):
    assert read(NEMO, text, cut=True)[::2] == (parts, statuses)


@pytest.mark.parametrize(
    ("text", "parts", "finish", "statuses"),
    [
        (
            "Hm.</think>So.<tool_call>look<arg_key>at</arg_key><arg_value> 1 </arg_value></tool_call><|observation|>",
            (Reasoning("Hm."), Text("So."), ToolCall("call_1_0", "look", '{"at": " 1 "}')),
            Finish.TOOL_CALLS,
            [Status.OK],
        ),
        (
            "</think><tool_call>look<arg_key>at</arg_key><arg_value>the",
            (ToolCall("call_1_0", "look", "<arg_key>at</arg_key><arg_value>the"),),
            Finish.LENGTH,
            [Status.UNCLOSED],
        ),
        ("</think><tool_call>  </tool_call>", (Text("<tool_call>  </tool_call>"),), Finish.LENGTH, [Status.MALFORMED]),
    ],
)
def test_pairs_of_tags_are_read_without_loss(text, parts, finish, statuses):
    assert read("GLM-4.7-Flash", text, cut=True) == (parts, finish, statuses)
