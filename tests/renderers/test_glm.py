"""GLM-5: what the shared tests of the families do not ask."""

import pytest

from rollwright.renderers.contract import PARITY, Declined
from rollwright.wire import Message, Reasoning, Text, ToolCall, ToolSpec, assistant, tool_result, user

from .cases import case_of

TOOLS = (ToolSpec("look", "Looks.", {"type": "object", "properties": {"at": {"type": "string"}}}),)


@pytest.mark.parametrize("name", ["glm-5.2", "glm-5.3"])
@pytest.mark.parametrize("effort", ["", "low", "high", "max"])
@pytest.mark.parametrize("thinking", [True, False])
def test_effort_is_told_in_the_template_s_own_words(name, effort, thinking):
    case = case_of(name)
    renderer = case.renderer(literal=PARITY, thinking=thinking, effort=effort)
    told = {"enable_thinking": thinking, **({"reasoning_effort": effort} if effort else {})}
    text = case.oracle().text([user("Well?")], TOOLS, **told)
    assert renderer.engine.decode(renderer.render([user("Well?")], TOOLS).ids) == text


@pytest.mark.parametrize("ids", [("a", "b", "c"), ("c", "a", "b"), ("b",), ("a", "a", "b"), ("x", "a"), ("", "a")])
def test_results_stand_in_the_order_of_their_calls(ids):
    case = case_of("glm-5.3")
    renderer = case.renderer()
    asked = [user("Well?")]
    answer = assistant("", *(ToolCall(id, "look", "{}") for id in ("a", "b", "c")))
    results = [tool_result(id, f"for {id}") for id in ids]
    full = renderer.render([*asked, answer, *results], TOOLS)
    assert renderer.engine.decode(full.ids) == case.oracle().text([*asked, answer, *results], TOOLS)
    tape = renderer.render(asked, TOOLS)
    sampled = tape.sample(renderer.answer(tape, answer), {call.id: call.name for call in answer.tool_calls})
    assert renderer.extend(sampled, results).ids.tolist() == full.ids.tolist()


@pytest.mark.parametrize(("name", "extends"), [("glm-5", False), ("glm-5.2", False), ("glm-5.3", True)])
def test_reasoning_stays_where_the_template_keeps_it(name, extends):
    renderer = case_of(name).renderer()
    talk = [user("Well?"), Message("assistant", (Reasoning("\n So. "), Text("Yes."))), user("And?")]
    tape = renderer.render(talk[:1])
    longer = renderer.extend(tape.sample(renderer.answer(tape, talk[1])), talk[2:])
    assert isinstance(longer, Declined) is not extends
    assert not extends or longer.ids.tolist() == renderer.render(talk).ids.tolist()


def test_an_answer_without_reasoning_is_extended_where_an_empty_block_stays():
    renderer = case_of("glm-5.2").renderer()
    talk = [user("Well?"), assistant("Yes."), user("And?")]
    tape = renderer.render(talk[:1])
    longer = renderer.extend(tape.sample(renderer.answer(tape, talk[1])), talk[2:])
    assert longer.ids.tolist() == renderer.render(talk).ids.tolist()
