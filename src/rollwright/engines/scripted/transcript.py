"""Recorded conversations, played back.

A transcript is a JSONL file. Each line is one conversation in the messages of `wire`:

    {"messages": [{"role": "user", "parts": [{"type": "text", "text": "2+2?"}]},
                  {"role": "assistant", "parts": [{"type": "text", "text": "4"}]}]}

A call is answered by the line that begins with exactly the conversation of the call. Where no line does, lines that
hold answers only (no other role) are played by turn: the answer to the first call of any conversation, to the second,
and so on. Where several lines fit, each time the same conversation is asked the next of them answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from rollwright.wire import EngineRefused, Message, ModelCall, UsageError

from .conversations import Draw, fingerprints


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    messages: tuple[Message, ...]


class Transcript:
    """A policy that says what was said."""

    def __init__(self, conversations: Iterable[Sequence[Message]]) -> None:
        self._by_prefix: dict[bytes, list[Message]] = {}
        self._by_turn: list[list[Message]] = []
        for conversation in conversations:
            self._add(conversation)

    @classmethod
    def load(cls, path: Path) -> Transcript:
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise UsageError(f"transcript '{path}' cannot be read: {error.strerror or error}") from error
        return cls([_parsed(line, path, number) for number, line in enumerate(lines, 1) if line.strip()])

    def __call__(self, call: ModelCall, rng: Draw) -> Message:
        # Tools are left out: a transcript remembers what was said, not with which tools in reach.
        fitting = self._by_prefix.get(fingerprints(call.messages)[-1])
        if fitting is None:
            turn = sum(message.role == "assistant" for message in call.messages)
            if turn >= len(self._by_turn):
                raise EngineRefused(f"the transcript has no answer for turn {turn + 1} of this conversation")
            fitting = self._by_turn[turn]
        return fitting[rng.asked % len(fitting)]

    def _add(self, conversation: Sequence[Message]) -> None:
        if all(message.role == "assistant" for message in conversation):
            for turn, message in enumerate(conversation):
                if turn == len(self._by_turn):
                    self._by_turn.append([])
                self._by_turn[turn].append(message)
            return
        for prefix, message in zip(fingerprints(conversation), conversation, strict=False):
            if message.role == "assistant":
                self._by_prefix.setdefault(prefix, []).append(message)


def write_transcript(path: Path, conversations: Iterable[Sequence[Message]]) -> None:
    """Record conversations for later play."""
    lines = [msgspec.json.encode(Line(tuple(conversation))) for conversation in conversations]
    path.write_bytes(b"".join(line + b"\n" for line in lines))


def _parsed(line: bytes, path: Path, number: int) -> tuple[Message, ...]:
    try:
        return msgspec.json.decode(line, type=Line).messages
    except msgspec.DecodeError as error:
        raise UsageError(f"line {number} of transcript '{path}' is no conversation: {error}") from error
