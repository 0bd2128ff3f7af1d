"""Tools: schemas from type hints, and a model that gets its mistakes told."""

from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.dialects import Hashes
from rollwright.tasks import Task, Toolbox, ToolRefusal, hooks_of, tool
from rollwright.wire import Image, RuntimeLost, TaskBroken, Text, ToolCall, ToolError, ToolResult


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Box(Task, frozen=True):
    @tool
    def add(self, a: int, b: Annotated[int, msgspec.Meta(description="The second number.")] = 2) -> int:
        """Add two numbers.

        The second is optional."""
        return a + b

    @tool
    async def keep(self, state, name: str, at: Point, mode: Literal["new", "old"] = "new", runtime=None) -> str:
        state[name] = (at, mode)
        return "kept"

    @tool
    def answer(self, state):
        if isinstance(state["value"], BaseException):
            raise state["value"]
        return state["value"]


BOX = Box(id="a")
HOOKS = hooks_of(Box)


async def call(name, arguments, state=None):
    supplies = {"state": {} if state is None else state, "runtime": None}
    message = await Toolbox(BOX, (), lambda: supplies, Hashes).call(ToolCall("c1", name, arguments))
    assert message.role == "tool"
    (result,) = message.parts
    assert isinstance(result, ToolResult)
    assert result.call_id == "c1"
    return result


def text_of(result):
    return "".join(part.text for part in result.content)


def test_schemas_hold_the_models_arguments_and_nothing_else():
    add, keep, answer = HOOKS.tool_specs
    assert (add.name, add.description) == ("add", "Add two numbers.\n\nThe second is optional.")
    assert add.parameters == {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": "integer", "description": "The second number.", "default": 2},
        },
        "required": ["a"],
        "additionalProperties": False,
    }
    assert set(keep.parameters["properties"]) == {"name", "at", "mode"}
    assert keep.parameters["required"] == ["name", "at"]
    assert keep.parameters["properties"]["at"] == {"$ref": "#/$defs/Point"}
    assert keep.parameters["$defs"]["Point"]["required"] == ["x"]
    assert keep.parameters["properties"]["mode"]["enum"] == ["new", "old"]
    assert answer.parameters["properties"] == {}
    assert HOOKS.needs_runtime


@given(a=st.integers(-(2**53), 2**53), b=st.none() | st.integers(-(2**53), 2**53))
async def test_good_arguments_reach_the_tool(a, b):
    arguments = msgspec.json.encode({"a": a} if b is None else {"b": b, "a": a}).decode()
    result = await call("add", arguments)
    assert (text_of(result), result.is_error) == (str(a + (2 if b is None else b)), False)


async def test_state_is_injected_and_nested_types_are_built():
    state = {}
    result = await call("keep", '{"name": "home", "at": {"x": 1}, "mode": "old"}', state)
    assert text_of(result) == "kept"
    assert state == {"home": (Point(1, 0), "old")}


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("add", "{", "not valid JSON"),
        ("add", "[1]", "Expected `object`, got `array`"),
        ("add", '{"a": "1"}', "Expected `int`, got `str` - at `$.a`"),
        ("add", '{"b": 1}', "missing required field `a`"),
        ("add", "", "missing required field `a`"),
        ("add", '{"a": 1, "c": 2}', "unknown field `c`"),
        ("add", '{"a": 1} trailing', "not valid JSON"),
        ("keep", '{"name": "n", "at": {"x": 1}, "state": {}}', "unknown field `state`"),
        ("keep", '{"name": "n", "at": {"x": 1}, "mode": "odd"}', "Invalid enum value"),
        ("add", '{"a": ' + "[" * 100_000, "Expected `int`, got `array`"),
        ("add", '{"a": "\udc80"}', "not valid JSON"),
        ("subtract", "{}", "There is no tool 'subtract'. The tools are: add, keep, answer."),
    ],
    ids=lambda value: value[:30],
)
async def test_the_models_mistakes_are_told_to_the_model(name, arguments, told):
    result = await call(name, arguments)
    assert result.is_error
    assert told in text_of(result)


@given(arguments=st.text(max_size=30))
async def test_no_text_breaks_the_rollout(arguments):
    result = await call("add", arguments)
    assert result.is_error
    assert text_of(result)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("text", "text"),
        (None, ""),
        ({"a": [1, 2]}, '{"a":[1,2]}'),
        (3.5, "3.5"),
        (Point(1, 2), '{"x":1,"y":2}'),
        ([], "[]"),
        (Text("part"), "part"),
    ],
)
async def test_results_are_text_or_json(value, shown):
    result = await call("answer", "{}", {"value": value})
    assert (text_of(result), result.is_error) == (shown, False)


async def test_images_are_parts():
    picture = Image("0" * 64, "image/png")
    result = await call("answer", "", {"value": [Text("see"), picture]})
    assert result.content == (Text("see"), picture)


async def test_a_refusal_is_a_value():
    result = await call("answer", "{}", {"value": ToolRefusal("The door is locked.")})
    assert (text_of(result), result.is_error) == ("The door is locked.", True)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (ZeroDivisionError("no"), "tool 'answer' of Box raised ZeroDivisionError: no"),
        (SystemExit(2), "tool 'answer' of Box raised SystemExit: 2"),
        (object(), "tool 'answer' of Box returned object, which does not go into JSON"),
    ],
    ids=["raises", "exits", "answers with no JSON"],
)
async def test_a_tool_that_breaks_is_a_tool_error(value, said):
    with pytest.raises(ToolError) as broken:
        await call("answer", "{}", {"value": value})
    assert str(broken.value) == said


async def test_a_lost_box_stays_a_lost_box():
    with pytest.raises(RuntimeLost):
        await call("answer", "{}", {"value": RuntimeLost("gone")})


def test_hints_that_make_no_schema_are_refused_when_read():
    class Odd(Task, frozen=True):
        @tool
        def look(self, at: "Nowhere"):  # noqa: F821
            return at

    class Callback(Task, frozen=True):
        @tool
        def look(self, at: complex):
            return at

    for kind in (Odd, Callback):
        with pytest.raises(TaskBroken, match=f"tool 'look' of {kind.__name__}"):
            hooks_of(kind)
