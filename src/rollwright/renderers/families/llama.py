"""Llama-3.1, 3.2 and 3.3 with tools of one's own: header, words, end of turn. A call is the whole answer, without tags.
The built-in tools of these models (code between special tokens) are not covered; their calls are read as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollwright.renderers.contract import RenderOptions
from rollwright.renderers.script import Script
from rollwright.wire import Message, ToolSpec, UsageError

from .calls_json import JsonCalls
from .jsons import printed, tool_object
from .table import Family, Results, Speech, Wrap, strip

_END = "<|eot_id|>"
_LISTING = (
    "Given the following functions, please respond with a JSON for a function call with its proper arguments that best "
    "answers the given prompt.\n\nRespond in the format "
    '{"name": function name, "parameters": dictionary of argument name and its value}.Do not use variables.\n\n'
)


def _header(role: str) -> str:
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n"


@dataclass(frozen=True, slots=True)
class LlamaHead:
    """The system turn, which tells dates, and the first message of the user, which has the tool list before it."""

    def write(
        self, script: Script, messages: Sequence[Message], tools: Sequence[ToolSpec], options: RenderOptions
    ) -> int:
        given = int(len(messages) > 0 and messages[0].role == "system")
        script.frame("<|begin_of_text|>" + _header("system"))
        script.frame("Environment: ipython\n" if tools else "")
        script.frame("Cutting Knowledge Date: December 2023\nToday Date: ")
        script.said(options.date)
        script.frame("\n\n")
        if given:
            script.turn(0, "system")
            script.shown(messages[0].parts, strip)
        script.frame(_END)
        if not tools:
            return given
        if len(messages) == given or messages[given].role != "user":
            raise UsageError("this format lists the tools in the first message of the user, and there is none")
        script.turn(given, "user")
        script.frame(_header("user"))
        script.turn(-1, "system")
        script.frame(_LISTING)
        script.said("".join([printed(tool_object(tool), indent=4) + "\n\n" for tool in tools]))
        script.turn(given, "user")
        script.shown(messages[given].parts, strip)
        script.frame(_END)
        return given + 1


LLAMA3 = Family(
    name="llama3.1",
    fingerprints=("93c0e9aa3629bbd77e68dbc0f5621f6e", "d82792f95932f1c9cef5c4bd992f1712"),
    models=(r"llama-?3\.[123]",),
    head=LlamaHead(),
    user=Wrap(_header("user"), _END, strip),
    system=Wrap(_header("system"), _END, strip),
    speech=Speech(
        _header("assistant"),
        _END,
        "",
        calls=JsonCalls(
            begin='{"name": "', end="", open='{"name": "', middle='", "parameters": ', close="}", bare=True
        ),
        words=strip,
        calls_hide_text=True,
        one_call=True,
    ),
    # The template prints a result as JSON, quotes and all.
    results=Results("", _header("ipython"), _END, "", words=printed),
    stops=(_END, "<|end_of_text|>", "<|eom_id|>"),
)
