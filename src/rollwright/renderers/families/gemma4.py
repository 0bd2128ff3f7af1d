"""Gemma 4: one turn of the model goes on through all its calls and their results. The model ends a call with the token
that opens the result. Its template shows the text of an answer that calls after the results, wherever it was said."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rollwright.renderers.contract import LiteralPolicy, Reason, RenderOptions, ThinkingPolicy
from rollwright.renderers.engine import TokenEngine
from rollwright.renderers.script import Script
from rollwright.renderers.tape import Tape
from rollwright.wire import Image, Message, Role, Text, ToolSpec, UsageError

from .calls_gemma import QUOTE, GemmaCalls
from .gemma import PLAIN
from .gemma4_tools import write_tool
from .table import Family, Past, Results, Shown, Speech, Thinking, Wrap, any_text, strip

_OPEN, _CLOSE = "<|turn>", "<turn|>"
_SPEAK = f"{_OPEN}model\n"
_RESULT = "<|tool_response>"
_THINK, _THOUGHT = "<|channel>", "<channel|>"
_CALLS = GemmaCalls("<|tool_call>", "<tool_call|>")
_ASIDE = re.compile(r"<\|channel>.*?<channel\|>|<\|tool_call>.*?<tool_call\|>|.*?<channel\|>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Gemma4Head:
    """The begin token, and a turn of the system that asks for thinking and lists the tools."""

    def write(
        self, script: Script, messages: Sequence[Message], tools: Sequence[ToolSpec], options: RenderOptions
    ) -> int:
        _check(messages)
        given = len(messages) > 0 and messages[0].role == "system"
        script.frame("<bos>")
        if not (given or tools or options.thinking):
            return 0
        script.frame(f"{_OPEN}system\n<|think|>\n" if options.thinking else f"{_OPEN}system\n")
        if given:
            script.turn(0, "system")
            script.shown(messages[0].parts, strip)
        script.turn(-1, "system")
        for tool in tools:
            write_tool(script, tool)
        script.frame(_CLOSE + "\n")
        return int(given)


def _check(messages: Sequence[Message]) -> None:
    """The template leaves out results that no call came before."""
    for before, message in pairwise((Message("system", ()), *messages)):
        if message.role == "tool" and before.role != "tool" and not before.tool_calls:
            raise UsageError("in this format results of tools follow the answer that called them")


@dataclass(frozen=True, slots=True)
class Gemma4User:
    """A turn of the user. Beside images, each text is stripped on its own."""

    def write(self, script: Script, messages: Sequence[Message], at: int, tools: Sequence[ToolSpec]) -> bool:
        parts = messages[at].parts
        if not any(isinstance(part, Image) for part in parts):
            return False
        script.frame(f"{_OPEN}user\n")
        for part in parts:
            if isinstance(part, Image):
                script.picture(part)
            elif isinstance(part, Text):
                script.said(part.text.strip())
            else:
                raise UsageError(f"a user cannot say a {type(part).__name__}")
        script.frame(_CLOSE + "\n")
        return True


@dataclass(frozen=True, slots=True)
class Gemma4Voice:
    """The model's own turn, up to where results come in."""

    keeps: bool

    def write(self, script: Script, messages: Sequence[Message], at: int) -> None:
        message = messages[at]
        if _next_role(messages[:at][::-1]) != "assistant":
            script.frame(_SPEAK)
        current = self.keeps or not any(later.role == "user" for later in messages[at + 1 :])
        self._write_spoken(script, message, message.reasoning if current else "")
        if messages[at + 1 : at + 2] and messages[at + 1].role == "tool":
            return
        script.said(_shown_text(script, message))
        if message.tool_calls:
            script.frame(_RESULT)
        elif _next_role(messages[at + 1 :]) != "assistant":
            script.frame(_CLOSE + "\n")

    def answer(self, script: Script, message: Message) -> None:
        self._write_spoken(script, Message("assistant", ()), message.reasoning, script.resumes)
        script.said(message.text.strip())
        self._write_spoken(script, message, "")
        script.frame(_RESULT if message.tool_calls else _CLOSE)

    def _write_spoken(self, script: Script, message: Message, reasoning: str, begun: bool = False) -> None:
        """The reasoning and the calls. `begun` says that the prompt has begun the reasoning."""
        if reasoning or begun:
            script.reasoned = True
            script.frame("" if begun else f"{_THINK}thought\n")
            script.said(reasoning)
            script.frame(f"\n{_THOUGHT}")
        for call in message.tool_calls:
            _CALLS.write(script, call)


def _shown_text(script: Script, message: Message) -> str:
    """The template takes reasoning out of texts. A text that merely holds such tags is left alone."""
    text = message.text
    if script.policy is LiteralPolicy.PARITY:
        text = "".join(part.split(_THINK)[0] for part in text.split(_THOUGHT))
    return text.strip()


def _next_role(messages: Sequence[Message]) -> Role | None:
    return next((message.role for message in messages if message.role != "tool"), None)


def _write_tail(script: Script, messages: Sequence[Message], at: int) -> None:
    """The text of the answer whose calls had these results, and the end of its turn if somebody else speaks."""
    caller = next((back for back in range(at - 1, -1, -1) if messages[back].role != "tool"), None)
    text = ""
    if caller is not None:
        script.turn(script.message - (at - 1 - caller), "assistant")
        text = _shown_text(script, messages[caller])
        script.said(text)
        script.turn(script.message + (at - 1 - caller), "tool")
    follows = _next_role(messages[at:])
    if follows != "assistant" and (text or follows is not None):
        script.frame(_CLOSE + "\n")


def _declines(engine: TokenEngine, tape: Tape, messages: Sequence[Message]) -> Reason | None:
    roles = [message.role for message in messages]
    results = next((at for at, role in enumerate(roles) if role != "tool"), len(roles))
    called = len(tape.added) > 0 and int(tape.added[-1]) == engine.special(_RESULT)
    if "tool" in roles[results:] or (results and not called):
        return Reason.ROLE_NOT_APPENDED
    if np.count_nonzero(tape.added == engine.special(_CALLS.begin)) and _ASIDE.sub("", engine.decode(tape.added[:-1])):
        # The text beside a call moves to the end of its results.
        return Reason.HEAD_MOVED
    return None


def _voice(options: RenderOptions) -> Gemma4Voice:
    return Gemma4Voice(options.history is ThinkingPolicy.KEEP)


GEMMA4 = Family(
    name="gemma4",
    fingerprints=("603a42db292c25278e9b23d94c7abbe7",),
    models=(r"gemma-?4",),
    head=Gemma4Head(),
    user=Wrap(f"{_OPEN}user\n", _CLOSE + "\n", strip),
    heard=Gemma4User(),
    system=Wrap(f"{_OPEN}system\n", _CLOSE + "\n", strip),
    speech=Speech(
        _SPEAK,
        _CLOSE,
        "\n",
        thinking=Thinking(
            begin=_THINK,
            end=_THOUGHT,
            open=f"{_THINK}thought\n",
            close=f"\n{_THOUGHT}",
            shown=Shown.ONLY_FILLED,
            past=Past.DROPPED,
            resumes=f"{_THINK}thought\n",
            on=False,
            tells_query=any_text,
            without_query=True,
        ),
        calls=_CALLS,
        words=strip,
        after={"tool": ""},
        voice=_voice,
    ),
    results=Results(
        "",
        f"{_RESULT}response:{{name}}{{value:{QUOTE}",
        f"{QUOTE}}}<tool_response|>",
        "",
        named=True,
        unnamed="unknown",
        images_last=True,
        tail=_write_tail,
    ),
    stops=(_CLOSE, _RESULT, "<eos>"),
    closing=(_RESULT,),
    opening=(_RESULT,),
    plain=PLAIN,
    image="<|image|>",
    declines=_declines,
)
