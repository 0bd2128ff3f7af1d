"""Qwen3.5, Qwen3.6 and Qwen3.8: turns between im_start and im_end, calls as tags in tags, reasoning that the prompt
begins, images as placeholders. Texts are stripped, as their templates do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rollwright.renderers.contract import RenderOptions
from rollwright.renderers.script import Script
from rollwright.wire import Image, Message, ToolSpec, UsageError

from .calls_xml import XmlCalls
from .jsons import printed, tool_object
from .qwen import RESULTS, STOPS, SYSTEM, USER, looks_like_a_query
from .table import Family, Past, Shown, Speech, Thinking, strip

_LISTING = "# Tools\n\nYou have access to the following functions:\n\n<tools>"
LISTED = (
    "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
    "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n"
    "</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within "
    "<tool_call></tool_call> XML tags\n- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT "
    "after\n- If there is no function call available, answer the question like normal with your current knowledge and "
    "do not tell the user about function calls\n</IMPORTANT>"
)
_EFFORTS = {
    "xhigh": (
        "Reasoning effort is set to xhigh. Please think carefully through the task, validate key assumptions, consider "
        "plausible alternatives, and prioritize correctness, consistency, and clarity in the final answer."
    ),
    "medium": "",
    "low": (
        "Reasoning effort is set to low. Keep your thinking brief and focused, moving directly to the conclusion "
        "without unnecessary elaboration."
    ),
}


@dataclass(frozen=True, slots=True)
class Qwen35Head:
    """The tool list with the system message after it."""

    efforts: bool = False
    """The system is told how hard to think."""

    def write(
        self, script: Script, messages: Sequence[Message], tools: Sequence[ToolSpec], options: RenderOptions
    ) -> int:
        if not messages:
            raise UsageError("this format wants at least one message")
        given = messages[0].role == "system"
        if given and any(isinstance(part, Image) for part in messages[0].parts):
            raise UsageError("this format has no images in the system message")
        text = messages[0].text.strip() if given else ""
        effort = self._effort(options)
        if tools:
            self._write_listing(script, tools, effort)
        elif (given and not self.efforts) or text or effort:
            script.frame(SYSTEM.open)
            script.frame(effort + "\n\n" if effort and text else effort)
        else:
            return int(given)
        script.turn(0 if given else -1, "system")
        if text:
            script.frame("\n\n" if tools else "")
            script.said(text)
        script.frame(SYSTEM.close)
        return int(given)

    def _write_listing(self, script: Script, tools: Sequence[ToolSpec], effort: str) -> None:
        script.frame(SYSTEM.open)
        script.frame(effort + "\n\n" if effort else "")
        script.frame(_LISTING)
        script.said("".join(["\n" + printed(tool_object(tool)) for tool in tools]))
        script.frame(LISTED)

    def _effort(self, options: RenderOptions) -> str:
        if not self.efforts or options.thinking is False:
            return ""
        try:
            return _EFFORTS[options.effort or "xhigh"]
        except KeyError:
            raise UsageError(f"reasoning effort {options.effort!r} is not known; use xhigh, medium or low") from None


def _tells_query(text: str) -> bool:
    return looks_like_a_query(text.strip())


def _python_word(value: Any) -> str:
    """As Qwen3.5's template writes it: true is True."""
    return str(value)


def _thinking(**changes: Any) -> Thinking:
    form = Thinking(
        begin="<think>",
        end="</think>",
        open="<think>\n",
        close="\n</think>\n\n",
        shown=Shown.ALWAYS,
        past=Past.DROPPED,
        prompt="<think>\n",
        prompt_off="<think>\n\n</think>\n\n",
        words=strip,
        tells_query=_tells_query,
        in_content=True,
    )
    return replace(form, **changes)


_CALLS = XmlCalls("<tool_call>", "</tool_call>", _python_word, lead="\n\n", between="\n")
_SPEECH = Speech("<|im_start|>assistant\n", "<|im_end|>", "\n", thinking=_thinking(), calls=_CALLS, words=strip)

QWEN3_5 = Family(
    name="qwen3.5",
    fingerprints=("a4aee8afcf2e0711942cf848899be660",),
    models=(r"qwen3\.5(?!.*(?:0\.8b|2b))",),
    head=Qwen35Head(),
    user=replace(USER, words=strip),
    speech=_SPEECH,
    results=replace(RESULTS, words=strip),
    stops=STOPS,
    image="<|vision_start|><|image_pad|><|vision_end|>",
    needs_query=True,
)

QWEN3_5_NOTHINK = replace(
    QWEN3_5,
    name="qwen3.5-nothink",
    fingerprints=("273d8e0e683b885071fb17e08d71e5f2",),
    models=(r"qwen3\.5.*(?:0\.8b|2b)",),
    speech=replace(_SPEECH, thinking=_thinking(on=False)),
)

QWEN3_6 = replace(
    QWEN3_5,
    name="qwen3.6",
    fingerprints=("e84f32a23fdda27689f868aa4a1a5621",),
    models=(r"qwen3\.6",),
    speech=replace(_SPEECH, calls=replace(_CALLS, value=printed)),
)

QWEN3_8 = replace(
    QWEN3_6,
    name="qwen3.8",
    fingerprints=("c3cf9e34abf4f9e36c2d72165aa9c132",),
    models=(r"qwen3\.8",),
    head=Qwen35Head(efforts=True),
    speech=replace(QWEN3_6.speech, thinking=_thinking(past=Past.KEPT, in_content=False)),
)
