"""gpt-oss (harmony): every message of the model goes to a channel, and a call of a tool to the tool by its name. The
format tells earlier reasoning no more once there is a final answer, and rewrites how that answer ended.

Text beside a call is reasoning to the template. Where there is reasoning too, which the template refuses, the text goes
to the commentary channel, as the model itself would put it. The built-in tools of these models are not covered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rollwright.renderers.contract import LiteralPolicy, Parser, Reason, RenderOptions, ThinkingPolicy
from rollwright.renderers.engine import TokenEngine
from rollwright.renderers.script import Script
from rollwright.renderers.tape import Tape
from rollwright.wire import Message, Reasoning, ToolCall, ToolSpec, UsageError

from .jsons import printed
from .table import Family, Results, Speech, Wrap, as_is
from .typescript import listing

_START, _END, _RETURN, _CALL = "<|start|>", "<|end|>", "<|return|>", "<|call|>"
_SPEAK = f"{_START}assistant"
_KEEPS = "keeps"


@dataclass(frozen=True, slots=True)
class HarmonyHead:
    """Who the model is, which day it is, how hard to think; then the developer, who is our system, and the tools."""

    def write(
        self, script: Script, messages: Sequence[Message], tools: Sequence[ToolSpec], options: RenderOptions
    ) -> int:
        script.note = _KEEPS if options.history is ThinkingPolicy.KEEP else ""
        script.frame(f"{_START}system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n")
        script.frame("Knowledge cutoff: 2024-06\nCurrent date: ")
        script.said(_date(options.date))
        script.frame("\n\nReasoning: ")
        script.said(options.effort or "medium")
        script.frame("\n\n# Valid channels: analysis, commentary, final. Channel must be included for every message.")
        script.frame("\nCalls to these tools must go to the commentary channel: 'functions'." if tools else "")
        script.frame(_END)
        given = len(messages) > 0 and messages[0].role == "system"
        told = given and bool(messages[0].text)
        if told or tools:
            script.frame(f"{_START}developer<|message|>")
        if told:
            script.frame("# Instructions\n\n")
            script.turn(0, "system")
            script.shown(messages[0].parts, as_is)
            script.turn(-1, "system")
            script.frame("\n\n")
        if tools:
            script.frame("# Tools\n\n")
            script.said(listing("functions", tools))
        script.frame(_END if told or tools else "")
        return int(given)


def _date(date: str) -> str:
    """The day as this format tells it. What is no day in our own form is told as it is."""
    try:
        return datetime.strptime(f"{date} +0000", "%d %b %Y %z").date().isoformat()
    except ValueError:
        return date


@dataclass(frozen=True, slots=True)
class HarmonyVoice:
    """The model's messages."""

    keeps: bool

    def write(self, script: Script, messages: Sequence[Message], at: int) -> None:
        message = messages[at]
        last = at == len(messages) - 1 and not script.asks
        if message.tool_calls:
            final = any(later.role == "assistant" and not later.tool_calls for later in messages[at + 1 :])
            self._write_call(script, message, _SPEAK, self.keeps or not final)
        else:
            self._write_final(script, message, _SPEAK, self.keeps or last, _RETURN if self.keeps or last else _END)

    def answer(self, script: Script, message: Message) -> None:
        if message.tool_calls:
            self._write_call(script, message, "", True)
        else:
            self._write_final(script, message, "", True, _RETURN)

    def _write_final(self, script: Script, message: Message, speak: str, thinks: bool, close: str) -> None:
        _check(script, message)
        if thinks and any(isinstance(part, Reasoning) for part in message.parts):
            speak = _write_said(script, speak, "analysis", message.reasoning)
        script.frame(f"{speak}<|channel|>final<|message|>")
        script.said(message.text)
        script.frame(close)

    def _write_call(self, script: Script, message: Message, speak: str, thinks: bool) -> None:
        _check(script, message)
        if len(message.tool_calls) > 1:
            raise UsageError("this format has one call of a tool per turn")
        reasoning, text = message.reasoning, message.text
        if thinks and (reasoning or text):
            speak = _write_said(script, speak, "analysis", reasoning or text)
        if thinks and reasoning and text:
            speak = _write_said(script, speak, "commentary", text)
        self._write_to(script, message.tool_calls[0], speak)

    def _write_to(self, script: Script, call: ToolCall, speak: str) -> None:
        script.frame(f"{speak} to=functions.")
        script.said(call.name)
        script.frame("<|channel|>commentary json<|message|>")
        script.said(call.arguments)
        script.frame(_CALL)


def _write_said(script: Script, speak: str, channel: str, text: str) -> str:
    """One message to a channel. Returns what begins the next."""
    script.frame(f"{speak}<|channel|>{channel}<|message|>")
    script.said(text)
    script.frame(_END)
    return _SPEAK


def _check(script: Script, message: Message) -> None:
    if script.policy is not LiteralPolicy.PARITY:
        return
    for text in (message.text, message.reasoning):
        if "<|channel|>analysis<|message|>" in text or "<|channel|>final<|message|>" in text:
            raise UsageError("an answer holds the tags of this format; say its reasoning and its text apart")


def _voice(options: RenderOptions) -> HarmonyVoice:
    return HarmonyVoice(options.history is ThinkingPolicy.KEEP)


def _declines(engine: TokenEngine, tape: Tape, messages: Sequence[Message]) -> Reason | None:
    """After a call all stays as it was. After a final answer the template ends that answer in another way and drops the
    reasoning before it."""
    called = len(tape.added) > 0 and int(tape.added[-1]) == engine.special(_CALL)
    return None if called or tape.note == _KEEPS else Reason.THINKING_DROPPED


def _parser(engine: TokenEngine, options: RenderOptions, tape: Tape) -> Parser:
    from rollwright.renderers.parse_harmony import HarmonyParser

    return HarmonyParser(engine, tape)


GPT_OSS = Family(
    name="gpt-oss",
    fingerprints=("a4c9919cbbd4acdd51ccffe22da04926",),
    models=(r"gpt-?oss",),
    head=HarmonyHead(),
    user=Wrap(f"{_START}user<|message|>", _END),
    speech=Speech(_SPEAK, _RETURN, "", voice=_voice, one_call=True),
    # The template prints a result as JSON, quotes and all.
    results=Results(
        "",
        f"{_START}functions.{{name}} to=assistant<|channel|>commentary<|message|>",
        _END,
        "",
        words=printed,
        named=True,
    ),
    stops=(_RETURN, _CALL, "<|endoftext|>"),
    closing=(_CALL,),
    declines=_declines,
    parser=_parser,
)
