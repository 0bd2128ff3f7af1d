"""MiniMax-M2: turns between brackets of their own, calls as invoke tags in one section, reasoning that the prompt
begins and that is shown until the user speaks again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollwright.renderers.contract import RenderOptions
from rollwright.renderers.script import Script
from rollwright.wire import Message, ToolSpec, UsageError

from .calls_invoke import InvokeCalls
from .jsons import printed, tool_object
from .table import Family, Past, Results, Shown, Speech, Thinking, Wrap, any_text, as_is

_END = "[e~["
_BEGIN, _FINISH = "<minimax:tool_call>", "</minimax:tool_call>"
_LISTING = (
    "\n\n# Tools\nYou may call one or more tools to assist with the user query.\n"
    "Here are the tools available in JSONSchema format:\n\n<tools>\n"
)
_LISTED = (
    "</tools>\n\nWhen making tool calls, use XML format to invoke tools and pass parameters:\n\n" + _BEGIN + "\n"
    '<invoke name="tool-name-1">\n<parameter name="param-key-1">param-value-1</parameter>\n'
    '<parameter name="param-key-2">param-value-2</parameter>\n...\n</invoke>\n' + _FINISH
)


@dataclass(frozen=True, slots=True)
class MiniMaxHead:
    """The system message, or who the model is, with the tool list after it."""

    def write(
        self, script: Script, messages: Sequence[Message], tools: Sequence[ToolSpec], options: RenderOptions
    ) -> int:
        _check(messages, options)
        given = len(messages) > 0 and messages[0].role == "system"
        script.frame("]~!b[]~b]system\n")
        if given and messages[0].text:
            script.turn(0, "system")
            script.shown(messages[0].parts, as_is)
            script.turn(-1, "system")
        else:
            script.frame("You are a helpful assistant.")
        if tools:
            script.frame(_LISTING)
            script.said("".join([f"<tool>{printed(tool_object(tool)['function'])}</tool>\n" for tool in tools]))
            script.frame(_LISTED)
        script.frame(f"{_END}\n")
        return int(given)


def _check(messages: Sequence[Message], options: RenderOptions) -> None:
    if options.thinking is False:
        raise UsageError("this model is always asked to think")
    called = False
    for message in messages:
        called = bool(message.tool_calls) if message.role == "assistant" else called
        if message.role == "tool" and not called:
            raise UsageError("in this format results of tools follow an answer that called them")


def _trim_newlines(text: str) -> str:
    return text.strip("\n")


MINIMAX_M2 = Family(
    name="minimax-m2",
    fingerprints=("a3e05b110e2d1ccf5373f2d2a09f8e2e",),
    models=(r"minimax-?m2(?!\.)",),
    head=MiniMaxHead(),
    user=Wrap("]~b]user\n", f"{_END}\n"),
    speech=Speech(
        "]~b]ai\n",
        _END,
        "\n",
        thinking=Thinking(
            begin="<think>",
            end="</think>",
            open="<think>\n",
            close="\n</think>\n\n",
            shown=Shown.ONLY_FILLED,
            past=Past.DROPPED,
            prompt="<think>\n",
            tells_query=any_text,
            without_query=True,
            in_content=True,
            rest=_trim_newlines,
        ),
        calls=InvokeCalls(),
        calls_open=f"\n{_BEGIN}\n",
        calls_close=_FINISH,
    ),
    results=Results("]~b]tool", "\n<response>", "</response>", f"{_END}\n"),
    stops=(_END,),
)
