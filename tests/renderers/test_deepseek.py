"""DeepSeek: what the shared tests of the families do not ask."""

import pytest

from rollwright.renderers.contract import PARITY, Declined, Reason, Status, ThinkingPolicy
from rollwright.wire import (
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolSpec,
    UsageError,
    assistant,
    reply_of,
    system,
    tool_result,
    user,
)

from .cases import case_of

FIRST, MENDED = "deepseek_v3", "deepseek-v3-0324"
V3, V4, FLASH = (f"deepseek-ai-DeepSeek-{name}" for name in ("V3.1", "V4", "V4-Flash-0731"))
TOOLS = (ToolSpec("look", "Looks.", {"type": "object", "properties": {"at": {"type": "string"}}}),)


@pytest.mark.parametrize("name", [V4, FLASH])
@pytest.mark.parametrize("effort", ["", "low", "high", "max"])
@pytest.mark.parametrize("thinking", [True, False])
def test_effort_is_told_in_the_template_s_own_words(name, effort, thinking):
    case = case_of(name)
    renderer = case.renderer(literal=PARITY, thinking=thinking, effort=effort)
    told = {"enable_thinking": thinking, **({"reasoning_effort": effort} if effort else {})}
    talk = [system("Be brief."), user("Well?")]
    text = case.oracle().text(talk, TOOLS, **told)
    assert renderer.render(talk, TOOLS).ids.tolist() == renderer.engine.encode(text).tolist()


@pytest.mark.parametrize("name", [FIRST, MENDED, V3, V4])
def test_a_late_system_message_moves_the_head(name):
    renderer = case_of(name).renderer()
    tape = renderer.render([user("Well?")])
    tape = tape.sample(renderer.answer(tape, assistant("Yes.")))
    assert renderer.extend(tape, [system("Be brief."), user("And?")]) == Declined(Reason.HEAD_MOVED)
    assert not isinstance(renderer.extend(tape, [user("And?")]), Declined)


@pytest.mark.parametrize(
    ("tools", "history", "declined"),
    [((), "template", True), (TOOLS, "template", False), ((), "keep", False)],
)
def test_reasoning_is_dropped_only_where_there_are_no_tools(tools, history, declined):
    renderer = case_of(V4).renderer(thinking=True, history=ThinkingPolicy(history))
    tape = renderer.render([user("Well?")], tools)
    said = Message("assistant", (Reasoning("Hm."), Text("Yes.")))
    longer = renderer.extend(tape.sample(renderer.answer(tape, said)), [user("And?")])
    if declined:
        assert longer == Declined(Reason.THINKING_DROPPED)
    else:
        assert longer.ids.tolist() == renderer.render([user("Well?"), said, user("And?")], tools).ids.tolist()


def test_results_without_a_call_before_them_are_refused():
    renderer = case_of(V4).renderer()
    with pytest.raises(UsageError, match="results"):
        renderer.render([user("Well?"), Message("tool", (Text("Rain."),))])


@pytest.mark.parametrize(
    ("written", "arguments", "status"),
    [
        ('<p name="at" string="true">7</p>\n', '{"at": "7"}', Status.OK),
        ('<p name="at" string="false">7</p>\n', '{"at": 7}', Status.OK),
        ('<p name="a" string="false">[1]</p>\n<p name="b" string="true"></p>\n', '{"a": [1], "b": ""}', Status.OK),
        ("\n", "{}", Status.OK),
        ('<p name="at" string="false">seven</p>\n', '{"at": "seven"}', Status.BAD_ARGUMENTS),
        ("at: 7\n", "\nat: 7\n", Status.BAD_ARGUMENTS),
    ],
)  # fmt: skip
def test_each_value_says_what_it_is(written, arguments, status):
    renderer = case_of(V4).renderer()
    tape = renderer.render([user("Well?")], TOOLS)
    body = written.replace("<p ", "<｜DSML｜parameter ").replace("</p>", "</｜DSML｜parameter>")
    text = f'Hm.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="look">\n{body}</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
    ids = renderer.engine.encode(text + "<｜end▁of▁sentence｜>")
    for size in (1, 3, len(ids)):
        parser = renderer.parser(tape)
        events = [event for at in range(0, len(ids), size) for event in parser.feed(ids[at : at + size])]
        reply = reply_of([*events, *parser.end()])
        assert reply.message == assistant("Hm.", ToolCall("call_1_0", "look", arguments))
        assert [attempt.status for attempt in parser.attempts] == [status]


@pytest.mark.parametrize("name", [FIRST, MENDED])
@pytest.mark.parametrize(
    ("fenced", "arguments", "status"),
    [
        ('{"at": "here"}\n```', '{"at": "here"}', Status.OK),
        ('{"at":\n"`\\n``"}\n```', '{"at":\n"`\\n``"}', Status.OK),
        ("here\n```", "here", Status.BAD_ARGUMENTS),
        ('{"at": 1}\n``', '{"at": 1}\n``', Status.BAD_ARGUMENTS),
    ],
)
def test_the_fence_around_arguments_is_no_part_of_them(name, fenced, arguments, status):
    renderer = case_of(name).renderer()
    tape = renderer.render([user("Well?")], TOOLS)
    call = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n{fenced}<｜tool▁call▁end｜>"
    ids = renderer.engine.encode(f"Hm.<｜tool▁calls▁begin｜>{call}\n{call}<｜tool▁calls▁end｜><｜end▁of▁sentence｜>")
    for size in (1, 3, len(ids)):
        parser = renderer.parser(tape)
        events = [event for at in range(0, len(ids), size) for event in parser.feed(ids[at : at + size])]
        calls = [ToolCall(f"call_1_{at}", "look", arguments) for at in range(2)]
        assert reply_of([*events, *parser.end()]).message == assistant("Hm.", *calls)
        assert [attempt.status for attempt in parser.attempts] == [status] * 2


def test_the_first_template_writes_calls_as_no_model_does_so_they_are_not_extended():
    talk = [user("Well?"), assistant("", ToolCall("c", "look", "{}")), tool_result("c", "Rain.")]
    for name, extended in ((FIRST, False), (MENDED, True)):
        renderer = case_of(name).renderer()
        tape = renderer.render(talk[:1], TOOLS)
        longer = renderer.extend(tape.sample(renderer.answer(tape, talk[1])), talk[2:])
        assert longer == Declined(Reason.ROLE_NOT_APPENDED) or extended
        assert not extended or longer.ids.tolist() == renderer.render(talk, TOOLS).ids.tolist()
