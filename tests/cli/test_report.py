"""A conversation is shown word for word, whatever its parts are."""

from rollwright.cli.report import conversation
from rollwright.wire import Image, Message, Node, Reasoning, Text, ToolCall, ToolResult, Trace, user


def test_every_kind_of_part_has_words():
    answer = Message("assistant", (Reasoning("hm"), Text("I look."), ToolCall("1", "look", '{"at": "sky"}')))
    result = Message("tool", (ToolResult("1", (Text("blue "), Image("ab" * 32, "image/png"))),))
    trace = Trace("t", 3, nodes=(Node(-1, user("What colour?")), Node(0, answer, 0), Node(1, result)), reward=0.5)
    assert conversation(trace).splitlines() == [
        "t, attempt 3: reward 0.500, finished",
        "",
        "[user]",
        "What colour?",
        "",
        "[assistant]",
        "(thinking) hm",
        "I look.",
        '(calls) look {"at": "sky"}',
        "",
        "[tool]",
        "blue (image) image/png abababababab",
    ]
