"""DeepSeek-V3 and V3-0324: no reasoning and no tool list, calls as JSON between fences, results in one section.

The template of the first V3 counts over the whole conversation where a section of calls or results begins, and shows
the calls of an answer only if it has no text. Its turns of tools are rendered as it has them and never extended. That
of 0324 has mended this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rollwright.renderers.contract import Reason, RenderOptions
from rollwright.renderers.engine import TokenEngine
from rollwright.renderers.script import Script
from rollwright.renderers.tape import Tape
from rollwright.wire import Message, Role, ToolSpec

from .calls_named import NamedCalls
from .deepseek import BOS, EOS, SPEAK, USER, check_results, moves_system, no_words, write_system
from .table import Family, Results, Speech, Wrap

_BEGIN, _END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_CALLS = NamedCalls(_BEGIN, _END, "\n```json\n", "function<｜tool▁sep｜>", "\n```", between="\n")
_CALLS_OPEN, _CALLS_CLOSE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_RESULTS_OPEN, _RESULTS_CLOSE = "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"
_RESULTS = Results(_RESULTS_OPEN, "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>", "", between="\n")


@dataclass(frozen=True, slots=True)
class DeepSeek3Head:
    """All system messages, wherever they stand."""

    def write(
        self, script: Script, messages: Sequence[Message], tools: Sequence[ToolSpec], options: RenderOptions
    ) -> int:
        check_results(messages)
        script.frame(BOS)
        write_system(script, messages)
        return 0


@dataclass(frozen=True, slots=True)
class DeepSeek3Voice:
    """The model's own turn. The user's turn has opened it, or it closes the section of results."""

    def write(self, script: Script, messages: Sequence[Message], at: int) -> None:
        script.frame(_RESULTS_CLOSE if _spoke(messages[:at]) == "tool" else "")
        self.answer(script, messages[at])

    def answer(self, script: Script, message: Message) -> None:
        script.said(message.text)
        for at, call in enumerate(message.tool_calls):
            script.frame("\n" if at else _CALLS_OPEN)
            _CALLS.write(script, call)
        script.frame(_CALLS_CLOSE + EOS if message.tool_calls else EOS)


@dataclass(frozen=True, slots=True)
class FirstVoice(DeepSeek3Voice):
    """The same as the first template has it: the section of calls begins once in a conversation and ends after every
    call but that first one, and the section of results begins once as well."""

    def write(self, script: Script, messages: Sequence[Message], at: int) -> None:
        message = messages[at]
        if _shows_calls(message):
            self._write_calls(script, message, begun=any(map(_shows_calls, messages[:at])))
        else:
            script.frame(_RESULTS_CLOSE if _spoke(messages[:at]) == "tool" else SPEAK)
            script.said(message.text)
            script.frame(EOS)
        if messages[at + 1 : at + 2] and messages[at + 1].role == "tool":
            script.frame("\n" if any(earlier.role == "tool" for earlier in messages[:at]) else _RESULTS_OPEN)

    def _write_calls(self, script: Script, message: Message, begun: bool) -> None:
        for call in message.tool_calls:
            script.frame("\n" if begun else SPEAK + _CALLS_OPEN)
            _CALLS.write(script, call)
            script.frame(_CALLS_CLOSE + EOS if begun else "")
            begun = True


def _spoke(messages: Sequence[Message]) -> Role | None:
    """Who spoke last, the system apart."""
    return next((message.role for message in reversed(messages) if message.role != "system"), None)


def _shows_calls(message: Message) -> bool:
    return bool(message.tool_calls) and not message.text


def _declines(engine: TokenEngine, tape: Tape, messages: Sequence[Message]) -> Reason | None:
    return moves_system(messages)


def _declines_tools(engine: TokenEngine, tape: Tape, messages: Sequence[Message]) -> Reason | None:
    called = np.count_nonzero(tape.added == engine.special(_CALLS_OPEN)) > 0
    if called or any(message.role == "tool" for message in messages):
        return Reason.ROLE_NOT_APPENDED
    return moves_system(messages)


DEEPSEEK_V3_0324 = Family(
    name="deepseek-v3-0324",
    fingerprints=("22e97ba043dacf9df1f071a9de9d2bb6",),
    models=(r"deepseek-?v3-0324",),
    head=DeepSeek3Head(),
    user=Wrap(USER, SPEAK),
    system=Wrap("", "", no_words),
    speech=Speech(
        SPEAK,
        EOS,
        "",
        calls=_CALLS,
        calls_open=_CALLS_OPEN,
        calls_close=_CALLS_CLOSE,
        after={"tool": _RESULTS_CLOSE, "user": ""},
        voice=lambda options: DeepSeek3Voice(),
    ),
    results=_RESULTS,
    stops=(EOS,),
    declines=_declines,
)

DEEPSEEK_V3 = replace(
    DEEPSEEK_V3_0324,
    name="deepseek-v3",
    fingerprints=("3b8267e54b67df6500f231ffa969955c",),
    models=(r"deepseek-?v3(?![.\d]|-\d)",),
    user=Wrap(USER, ""),
    speech=replace(DEEPSEEK_V3_0324.speech, after={"tool": _RESULTS_CLOSE}, voice=lambda options: FirstVoice()),
    # What opens the section is written with the answer before it.
    results=replace(_RESULTS, open=""),
    declines=_declines_tools,
)
