"""Mistral-Nemo: instructions between tags, the calls of a turn as one list of JSON objects. The tool list stands before
the last message of the user and the system's words inside of the last message, so both move when the user speaks again.

Ids of calls are nine letters in this format and are written with the call. An id of another length is written as nine
letters of its hash, the same with the call and with its result."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from rollwright.renderers.contract import Parser, Reason, RenderOptions
from rollwright.renderers.engine import TokenEngine
from rollwright.renderers.script import Script, spoken
from rollwright.renderers.tape import Tape
from rollwright.wire import Message, ToolSpec, UsageError

from .calls_list import ListedCalls
from .jsons import printed, tool_object
from .table import Family, Results, Speech, Wrap, as_is

_CALLS = "[TOOL_CALLS]"
_SHOWN, _WAITING = "shown", "waiting"


def nine(id: str) -> str:
    return id if len(id) == 9 else hashlib.sha256(id.encode("utf-8", "replace")).hexdigest()[:9]


@dataclass(frozen=True, slots=True)
class MistralHead:
    """The begin token. Where the system's words go is decided later."""

    def write(
        self, script: Script, messages: Sequence[Message], tools: Sequence[ToolSpec], options: RenderOptions
    ) -> int:
        given = int(len(messages) > 0 and messages[0].role == "system")
        plain = [message for message in messages[given:] if message.role != "tool" and not message.tool_calls]
        for at, message in enumerate(plain):
            if message.role != ("assistant" if at % 2 else "user"):
                raise UsageError("in this format user and assistant speak in turns, after at most one system message")
        script.note = _WAITING if given else ""
        script.frame("<s>")
        return given


@dataclass(frozen=True, slots=True)
class MistralUser:
    """The last message of the user, or one of the same words, has the tool list before it. If it is the last of all, it
    begins with what the system said."""

    def write(self, script: Script, messages: Sequence[Message], at: int, tools: Sequence[ToolSpec]) -> bool:
        message = messages[at]
        if tools and spoken(message.parts, "") == spoken(_last(messages).parts, ""):
            script.turn(-1, "system")
            script.frame("[AVAILABLE_TOOLS][")
            script.said(", ".join(map(_listed, tools)))
            script.frame("][/AVAILABLE_TOOLS]")
            script.turn(at, "user")
        script.frame("[INST]")
        if at == len(messages) - 1 and messages[0].role == "system":
            script.note = _SHOWN
            script.turn(0, "system")
            script.shown(messages[0].parts, as_is)
            script.frame("\n\n")
            script.turn(at, "user")
        script.shown(message.parts, as_is)
        script.frame("[/INST]")
        return True


def _last(messages: Sequence[Message]) -> Message:
    return next(message for message in reversed(messages) if message.role == "user")


def _listed(tool: ToolSpec) -> str:
    """A tool as the template prints it, which leaves strings as they are."""
    fields = tool_object(tool)["function"].items()
    shown = [f'"{key}": "{value}"' if isinstance(value, str) else f'"{key}": {printed(value)}' for key, value in fields]
    return '{"type": "function", "function": {' + ", ".join(shown) + "}}"


def _declines(engine: TokenEngine, tape: Tape, messages: Sequence[Message]) -> Reason | None:
    users = sum(message.role == "user" for message in messages)
    called = bool((tape.added == engine.special(_CALLS)).any())
    if users > (0 if called else 1):
        # The template takes no message of the user between results of tools and a plain answer.
        return Reason.ROLE_NOT_APPENDED
    if tape.note == _SHOWN or (users and (tape.tools or tape.note)):
        return Reason.HEAD_MOVED
    return None


def _parser(engine: TokenEngine, options: RenderOptions, tape: Tape) -> Parser:
    from rollwright.renderers.parse_list import ListParser, tags_of

    return ListParser(tags_of(MISTRAL_NEMO, engine), tape, inside=False)


MISTRAL_NEMO = Family(
    name="mistral-nemo",
    fingerprints=("e7deee034838db2bfc7487788a3013d8",),
    models=(r"mistral-?nemo",),
    head=MistralHead(),
    user=Wrap("[INST]", "[/INST]"),
    heard=MistralUser(),
    speech=Speech(
        "", "</s>", "", calls=ListedCalls(_CALLS, nine), calls_open=f"{_CALLS}[", calls_close="]", calls_hide_text=True
    ),
    results=Results("", '[TOOL_RESULTS]{"content": ', '"}[/TOOL_RESULTS]', "", id_lead=', "call_id": "', id_words=nine),
    stops=("</s>",),
    declines=_declines,
    parser=_parser,
)
