"""Kimi-K2: turns between im_user, im_assistant or im_system and im_end, calls in one section, each known by the name of
its tool and its number in the turn. A call's id is what the model wrote there, and its result repeats it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollwright.renderers.contract import RenderOptions
from rollwright.renderers.script import Script
from rollwright.wire import Delta, Message, ToolCall, ToolCallDelta, ToolSpec

from .calls_named import NamedCalls, NamedReader
from .jsons import printed, tool_object
from .table import Family, Results, Speech, Wrap

_END, _MIDDLE = "<|im_end|>", "<|im_middle|>"
_SPEAK = f"<|im_assistant|>assistant{_MIDDLE}"
_OPEN, _CLOSE = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"


def _system(role: str) -> str:
    return f"<|im_system|>{role}{_MIDDLE}"


class KimiReader(NamedReader):
    """A name with its number is the call's id."""

    def feed(self, text: str) -> list[Delta]:
        return [
            ToolCallDelta(event.index, event.arguments, event.name, _bare(event.name))
            if isinstance(event, ToolCallDelta) and event.name
            else event
            for event in super().feed(text)
        ]


def _bare(name: str) -> str:
    return name.removeprefix("functions.").rpartition(":")[0] or name


@dataclass(frozen=True, slots=True)
class KimiCalls(NamedCalls):
    def reader(self, tools: Sequence[ToolSpec], index: int, id: str) -> KimiReader:
        return KimiReader(self, index, id)


_CALLS = KimiCalls("<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>")


@dataclass(frozen=True, slots=True)
class KimiHead:
    """The tool list, and who the model is if no system message says so."""

    def write(
        self, script: Script, messages: Sequence[Message], tools: Sequence[ToolSpec], options: RenderOptions
    ) -> int:
        if tools:
            script.frame(_system("tool_declare"))
            script.said(printed([tool_object(tool) for tool in tools]))
            script.frame(_END)
        if messages and messages[0].role != "system":
            script.frame(f"{_system('system')}You are a helpful assistant{_END}")
        return 0


@dataclass(frozen=True, slots=True)
class KimiVoice:
    """The model's own turn, which numbers its calls."""

    def write(self, script: Script, messages: Sequence[Message], at: int) -> None:
        script.frame(_SPEAK)
        self.answer(script, messages[at])

    def answer(self, script: Script, message: Message) -> None:
        script.said(message.text)
        for at, call in enumerate(message.tool_calls):
            script.frame("" if at else _OPEN)
            _CALLS.write(script, ToolCall(call.id, f"functions.{call.name}:{at}", call.arguments))
        script.frame(_CLOSE + _END if message.tool_calls else _END)


def _voice(options: RenderOptions) -> KimiVoice:
    return KimiVoice()


KIMI_K2 = Family(
    name="kimi-k2",
    fingerprints=("aab20feb9bc6881f941ea649356130ff",),
    models=(),
    head=KimiHead(),
    user=Wrap(f"<|im_user|>user{_MIDDLE}", _END),
    system=Wrap(_system("system"), _END),
    speech=Speech(_SPEAK, _END, "", calls=_CALLS, calls_open=_OPEN, calls_close=_CLOSE, voice=_voice),
    # The template writes a backslash and a letter where a newline is meant.
    results=Results("", f"{_system('tool')}## Return of {{id}}\\n", _END, ""),
    stops=(_END, "[EOS]"),
)
