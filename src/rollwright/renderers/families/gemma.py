"""Gemma 3: turns of a user and a model that take turns strictly. The format has no tools, so a tool list changes
nothing, and the system speaks at the beginning of the first turn of the user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollwright.renderers.contract import Reason, RenderOptions
from rollwright.renderers.engine import TokenEngine
from rollwright.renderers.script import Script
from rollwright.renderers.tape import Tape
from rollwright.wire import Image, Message, Text, ToolSpec, UsageError

from .table import Family, Speech, Wrap, as_is, strip

# Runs of newlines and spaces and the tags of HTML are added tokens of these vocabularies, and plain text.
PLAIN = r"[\s▁]+|</?(?!(?:pad|eos|bos|unk|mask|unused\d+)>)[a-z][a-z0-9]*>"

_CLOSE = "<end_of_turn>"
_USER = "<start_of_turn>user\n"


@dataclass(frozen=True, slots=True)
class GemmaUser:
    """A turn of the user. Each text of it is stripped on its own, also between images."""

    def write(self, script: Script, messages: Sequence[Message], at: int, tools: Sequence[ToolSpec]) -> bool:
        script.frame(_USER)
        self.write_parts(script, messages[at])
        return True

    def write_parts(self, script: Script, message: Message) -> None:
        for part in message.parts:
            if isinstance(part, Image):
                script.picture(part)
            elif isinstance(part, Text):
                script.said(part.text.strip())
            else:
                raise UsageError(f"a user cannot say a {type(part).__name__}")
        script.frame(_CLOSE + "\n")


@dataclass(frozen=True, slots=True)
class GemmaHead:
    """The begin token and the first turn of the user, with the system's words before the user's own."""

    user: GemmaUser

    def write(
        self, script: Script, messages: Sequence[Message], tools: Sequence[ToolSpec], options: RenderOptions
    ) -> int:
        given = int(len(messages) > 0 and messages[0].role == "system")
        for at, message in enumerate(messages[given:]):
            if message.role != ("assistant" if at % 2 else "user"):
                raise UsageError("in this format user and assistant speak in turns, after at most one system message")
        script.frame("<bos>")
        if len(messages) == given:
            return given
        script.turn(given, "user")
        script.frame(_USER)
        if given:
            script.turn(0, "system")
            script.shown(messages[0].parts, as_is)
            script.frame("\n\n")
            script.turn(given, "user")
        self.user.write_parts(script, messages[given])
        return given + 1


def _declines(engine: TokenEngine, tape: Tape, messages: Sequence[Message]) -> Reason | None:
    """After an answer comes one message of the user and no more."""
    return None if [message.role for message in messages] in ([], ["user"]) else Reason.ROLE_NOT_APPENDED


GEMMA3 = Family(
    name="gemma3",
    fingerprints=("8d9e3a3c114fb2053ec500184677af4f",),
    models=(r"gemma-?3(?!n)",),
    head=GemmaHead(GemmaUser()),
    user=Wrap(_USER, _CLOSE + "\n", strip),
    heard=GemmaUser(),
    speech=Speech("<start_of_turn>model\n", _CLOSE, "\n", words=strip),
    results=None,
    stops=(_CLOSE, "<eos>"),
    plain=PLAIN,
    image="<start_of_image>",
    declines=_declines,
)
