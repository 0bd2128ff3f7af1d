"""Qwen2.5, Qwen3 and Qwen3-Instruct-2507: turns between im_start and im_end, calls as JSON between tags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollwright.renderers.contract import RenderOptions
from rollwright.renderers.script import Script
from rollwright.wire import Message, ToolSpec

from .calls_json import JsonCalls
from .jsons import printed, tool_object
from .table import Family, Past, Results, Shown, Speech, Thinking, Wrap, as_is, trim_first_newlines

_START, _END = "<|im_start|>", "<|im_end|>"
STOPS = (_END, "<|endoftext|>")

USER = Wrap(f"{_START}user\n", f"{_END}\n")
SYSTEM = Wrap(f"{_START}system\n", f"{_END}\n")
RESULTS = Results(f"{_START}user", "\n<tool_response>\n", "\n</tool_response>", f"{_END}\n")
CALLS = JsonCalls(
    begin="<tool_call>",
    end="</tool_call>",
    open='<tool_call>\n{"name": "',
    middle='", "arguments": ',
    close="}\n</tool_call>",
    lead="\n",
    between="\n",
)

_LISTING = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_LISTED = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)


@dataclass(frozen=True, slots=True)
class QwenHead:
    """The system message with the tool list after it."""

    default: str = ""
    """What the system says if nobody else speaks for it."""

    def write(
        self, script: Script, messages: Sequence[Message], tools: Sequence[ToolSpec], options: RenderOptions
    ) -> int:
        given = len(messages) > 0 and messages[0].role == "system"
        if not (given or self.default or tools):
            return 0
        script.turn(0 if given else -1, "system")
        script.frame(SYSTEM.open)
        if given:
            script.shown(messages[0].parts, as_is)
        else:
            script.frame(self.default)
        if tools:
            script.turn(-1, "system")
            script.frame("\n\n" + _LISTING if given or self.default else _LISTING)
            script.said("".join(["\n" + printed(tool_object(tool)) for tool in tools]))
            script.frame(_LISTED)
        script.frame(SYSTEM.close)
        return int(given)


def looks_like_a_query(text: str) -> bool:
    return not (text.startswith("<tool_response>") and text.endswith("</tool_response>"))


def _trim_newlines(text: str) -> str:
    return text.strip("\n")


QWEN2_5 = Family(
    name="qwen2.5",
    fingerprints=("55b2f4a26ac9ee719330a61a0c39d9e5",),
    models=(r"qwen2\.?5",),
    head=QwenHead("You are Qwen, created by Alibaba Cloud. You are a helpful assistant."),
    user=USER,
    system=SYSTEM,
    speech=Speech(f"{_START}assistant\n", _END, "\n", calls=CALLS),
    results=RESULTS,
    stops=STOPS,
)

QWEN3 = Family(
    name="qwen3",
    fingerprints=("87a2728cb8dc9fe424d624542f6060ec", "a55ee1b1660128b7098723e0abcd92ca"),
    models=(r"qwen3(?![.\d]|-?vl|-?coder|-?next|.*(?:instruct|thinking)-2507)",),
    head=QwenHead(),
    user=USER,
    system=SYSTEM,
    speech=Speech(
        f"{_START}assistant\n",
        _END,
        "\n",
        thinking=Thinking(
            begin="<think>",
            end="</think>",
            open="<think>\n",
            close="\n</think>\n\n",
            shown=Shown.FILLED,
            past=Past.DROPPED,
            prompt_off="<think>\n\n</think>\n\n",
            words=_trim_newlines,
            answer=trim_first_newlines,
            tells_query=looks_like_a_query,
            in_content=True,
        ),
        calls=CALLS,
    ),
    results=RESULTS,
    stops=STOPS,
)

QWEN3_INSTRUCT = Family(
    name="qwen3-instruct-2507",
    fingerprints=("64f85b198065d0fba2a81f37e10ed681",),
    models=(r"qwen3.*instruct-2507",),
    head=QwenHead(),
    user=USER,
    system=SYSTEM,
    speech=Speech(f"{_START}assistant\n", _END, "\n", calls=CALLS),
    results=RESULTS,
    stops=STOPS,
)
