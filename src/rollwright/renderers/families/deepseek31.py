"""DeepSeek-V3.1: the model's turn is opened after the user's and goes on after results of tools. Its template lists no
tools and shows no reasoning; whoever wants the model to call tools describes them in the system message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rollwright.renderers.contract import LiteralPolicy, Parser, Reason, RenderOptions, ThinkingPolicy
from rollwright.renderers.engine import TokenEngine
from rollwright.renderers.script import Script
from rollwright.renderers.tape import Tape
from rollwright.wire import Message, ToolSpec

from .calls_named import NamedCalls
from .deepseek import BOS, EOS, SPEAK, THINKING, USER, moves_system, no_words, write_system
from .table import Family, Results, Speech, Wrap

_CALLS = NamedCalls("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>")
_CALLS_OPEN, _CALLS_CLOSE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_DROPS = "drops"


@dataclass(frozen=True, slots=True)
class DeepSeek31Head:
    """All system messages, wherever they stand."""

    def write(
        self, script: Script, messages: Sequence[Message], tools: Sequence[ToolSpec], options: RenderOptions
    ) -> int:
        drops = options.thinking and options.history is not ThinkingPolicy.KEEP
        script.note = _DROPS if drops else ""
        script.frame(BOS)
        write_system(script, messages)
        return 0


@dataclass(frozen=True, slots=True)
class DeepSeek31Voice:
    """The model's own turn. What is past has an empty block of reasoning, unless reasoning is kept."""

    thinks: bool
    keeps: bool

    def write(self, script: Script, messages: Sequence[Message], at: int) -> None:
        message = messages[at]
        before = [message.role for message in messages[:at] if message.role != "system"][-1:]
        if before == ["user"]:
            script.frame(f"{SPEAK}<think>")
            if self.thinks and self.keeps:
                script.said(message.reasoning)
            script.frame("</think>")
        text = message.text
        if script.policy is LiteralPolicy.PARITY and not message.tool_calls and before != ["tool"]:
            # The template takes what stands before the tag for reasoning.
            text = text.split("</think>", 1)[-1]
        self._write_spoken(script, message, text)

    def answer(self, script: Script, message: Message) -> None:
        if self.thinks:
            script.said(message.reasoning)
            script.frame("</think>")
        self._write_spoken(script, message, message.text)

    def _write_spoken(self, script: Script, message: Message, text: str) -> None:
        script.said(text)
        if message.tool_calls:
            script.frame(_CALLS_OPEN)
            for call in message.tool_calls:
                _CALLS.write(script, call)
            script.frame(_CALLS_CLOSE)
        script.frame(EOS)


def _voice(options: RenderOptions) -> DeepSeek31Voice:
    return DeepSeek31Voice(bool(options.thinking), options.history is ThinkingPolicy.KEEP)


def _declines(engine: TokenEngine, tape: Tape, messages: Sequence[Message]) -> Reason | None:
    return moves_system(messages) or (Reason.THINKING_DROPPED if tape.note == _DROPS else None)


def _parser(engine: TokenEngine, options: RenderOptions, tape: Tape) -> Parser:
    from rollwright.renderers.parse import PushParser
    from rollwright.renderers.parse_list import tags_of

    # After results of tools there is no prompt, and nothing asks for reasoning.
    asked = engine.decode(tape.added[-12:]).endswith("<think>")
    return PushParser(tags_of(DEEPSEEK_V3_1, engine), tape, inside=asked)


DEEPSEEK_V3_1 = Family(
    name="deepseek-v3.1",
    fingerprints=("d9f5f351b276cf9e81d009db08830db7",),
    models=(r"deepseek-?v3\.1(?!.*terminus)",),
    head=DeepSeek31Head(),
    user=Wrap(USER, ""),
    system=Wrap("", "", no_words),
    speech=Speech(
        SPEAK,
        EOS,
        "",
        thinking=replace(THINKING, dropped="<think></think>", prompt_off="<think></think>"),
        calls=_CALLS,
        calls_open=_CALLS_OPEN,
        calls_close=_CALLS_CLOSE,
        voice=_voice,
        after={"tool": ""},
    ),
    results=Results("", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>", ""),
    stops=(EOS,),
    declines=_declines,
    parser=_parser,
)
