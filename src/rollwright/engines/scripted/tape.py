"""The token view of conversations: what a prompt is in ids, and what was sampled.

A prompt is one segment for each message. The segment of an answer that this engine gave holds the ids that were
sampled, so the prompt of the next turn extends the tape of this one, as in an engine that works on tokens; with
`rerender` it is rendered anew, and drifts. Segments are remembered by the hash of the conversation that they end, up to
a budget; what was forgotten is rendered anew and counted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from random import Random

import msgspec
import numpy as np

from rollwright.wire import (
    CallTokens,
    Finish,
    Message,
    ModelCall,
    Part,
    Reasoning,
    Routing,
    Text,
    ToolCall,
)
from rollwright.wire.arrays import Experts, Ids, Logprobs, column

from .config import ScriptedConfig
from .conversations import Piece, draw, extended, in_order, message_pieces, pieces, tool_text
from .tokens import END, NEWLINE, SPECIAL, cut, decode, encode, sample

SEGMENT_BUDGET_BYTES = 64 * 2**20
_ENTRY_BYTES = 256
# Logprobs are multiples of this, so float32, float64 and JSON hold the same number.
_LOGPROB_STEP = 1.0 / 1024.0


class Spoken(msgspec.Struct, frozen=True, eq=False):
    """An answer as it was sampled."""

    message: Message
    finish: Finish
    ids: list[int]
    conversation: bytes
    """The hash of the conversation with this answer."""


class Tape:
    """Segments of ids by conversation."""

    def __init__(self, config: ScriptedConfig, budget_bytes: int = SEGMENT_BUDGET_BYTES) -> None:
        self._config = config
        self._budget = budget_bytes
        self._bytes = 0
        self._segments: OrderedDict[bytes, Ids] = OrderedDict()
        self.forgotten = 0

    def __repr__(self) -> str:
        return f"<Tape {len(self._segments)} segments, {self._bytes} bytes, {self.forgotten} forgotten>"

    def clear(self) -> None:
        self._segments.clear()
        self._bytes = self.forgotten = 0

    def prompt(self, call: ModelCall, prints: Sequence[bytes]) -> list[Ids]:
        """The prompt in segments. `prints` are the fingerprints of the call."""
        segments = []
        if call.tools:
            segments.append(self._recall(prints[0]))
            if segments[-1] is None:
                segments[-1] = self._remember(prints[0], _framed("tools", encode(tool_text(call.tools))))
        for key, message in zip(prints[1:], call.messages, strict=True):
            found = self._recall(key)
            segments.append(self._remember(key, _rendered(message)) if found is None else found)
        segments.append(_GENERATE)
        return [segment for segment in segments if segment is not None]

    def speak(self, message: Message, finish: Finish, call: ModelCall, conversation: bytes) -> Spoken:
        """Sample ids for `message`, within the limits that the call sets, and remember them."""
        stopped = _stopped(message, call.sampling.stop)
        key = extended(conversation, stopped)
        limit = call.sampling.max_tokens
        parts, ids, whole = _sampled(in_order(stopped), draw(self._config.seed, "ids", key, 0), limit)
        if whole and (limit is None or len(ids) < limit):
            ids.append(END)
            spoken = Spoken(stopped, finish, ids, key)
        elif whole:
            spoken = Spoken(stopped, Finish.LENGTH, ids, key)
        else:
            said = Message("assistant", tuple(parts))
            spoken = Spoken(said, Finish.LENGTH, ids, extended(conversation, said))
        if not self._config.rerender:
            closing = [NEWLINE] if ids and ids[-1] == END else [END, NEWLINE]
            self._remember(spoken.conversation, [SPECIAL["assistant"], *ids, *closing])
        return spoken

    def tokens(self, prompt: list[Ids], spoken: Spoken, routed_from: int) -> CallTokens:
        """The columns of one call."""
        prompt_ids = np.concatenate(prompt)
        completion_ids = column(spoken.ids, "i4")
        rng = draw(self._config.seed, "logprobs", spoken.conversation, 0)
        routing = None
        if self._config.routed_layers and self._config.routed_topk:
            routing = route(np.concatenate((prompt_ids, completion_ids)), routed_from, self._config)
        return CallTokens(prompt_ids, completion_ids, draw_logprobs(rng, len(completion_ids)), routing)

    def _recall(self, key: bytes) -> Ids | None:
        segment = self._segments.get(key)
        if segment is not None:
            self._segments.move_to_end(key)
        return segment

    def _remember(self, key: bytes, ids: list[int]) -> Ids:
        segment = column(ids, "i4")
        replaced = self._segments.pop(key, None)
        self._bytes += _cost(segment) - (0 if replaced is None else _cost(replaced))
        self._segments[key] = segment
        while self._bytes > self._budget and len(self._segments) > 1:
            self._bytes -= _cost(self._segments.popitem(last=False)[1])
            self.forgotten += 1
        return segment


def route(ids: Ids, start: int, config: ScriptedConfig) -> Routing:
    """The experts of each position from `start` on, a plain function of position, id, layer and rank.

    The last id was sampled but never fed to the model, so it has no row."""
    start = min(max(start, 0), len(ids) - 1)
    position = np.arange(start, len(ids) - 1, dtype=np.uint32)
    mixed = position * np.uint32(7919) + ids[start:-1].astype(np.uint32) * np.uint32(104729)
    layer = np.arange(config.routed_layers, dtype=np.uint32) * np.uint32(31)
    rank = np.arange(config.routed_topk, dtype=np.uint32) * np.uint32(3)
    # 256 experts for uint8, 1024 for uint16, so that a wide row does not fit a narrow type.
    experts = np.uint32(0xFF if config.routed_dtype == "u1" else 0x3FF)
    base = (mixed[:, None] + layer[None, :]).astype(np.uint32)
    rows: Experts = column((base[:, :, None] + rank[None, None, :]) & experts, config.routed_dtype)
    return Routing(start, rows)


def _cost(segment: Ids) -> int:
    """Bytes of an entry, with what the array object and its place in the cache take."""
    return segment.nbytes + _ENTRY_BYTES


def draw_logprobs(rng: Random, count: int) -> Logprobs:
    steps = np.frombuffer(rng.randbytes(2 * count), dtype="<u2").astype(np.float32) % np.float32(8192.0)
    return column(-(steps + np.float32(1.0)) * np.float32(_LOGPROB_STEP), "f4")


def _framed(role: str, content: list[int]) -> list[int]:
    return [SPECIAL[role], *content, END, NEWLINE]


def _rendered(message: Message) -> list[int]:
    return _framed(message.role, _ids(message_pieces(message)))


def _ids(written: Sequence[Piece], rng: Random | None = None) -> list[int]:
    """Pieces as ids; with dice, as a model may have sampled them."""
    ids: list[int] = []
    for piece in written:
        if isinstance(piece, int):
            ids.append(piece)
        else:
            ids += encode(piece) if rng is None else sample(piece, rng)
    return ids


def _sampled(parts: Sequence[Part], rng: Random, limit: int | None) -> tuple[list[Part], list[int], bool]:
    """The parts that fit within `limit` ids, their ids, and whether that is all of them."""
    ids: list[int] = []
    for index, part in enumerate(parts):
        more = _ids(pieces(part), rng)
        if limit is not None and len(ids) + len(more) > limit:
            last, fitting = _cut_part(part, more, limit - len(ids))
            return [*parts[:index], *last], ids + fitting, False
        ids += more
    return list(parts), ids, True


def _cut_part(part: Part, ids: list[int], limit: int) -> tuple[list[Part], list[int]]:
    """As much of a part as `limit` ids say, in ids that say just that."""
    if isinstance(part, Text):
        kept = cut(ids, limit)
        return ([Text(decode(kept))] if kept else []), kept
    if isinstance(part, Reasoning):
        kept = cut(ids[1:-1], limit - 1)
        return ([Reasoning(decode(kept), part.signature)], [ids[0], *kept]) if kept else ([], [])
    if isinstance(part, ToolCall):
        head = ids.index(SPECIAL["call_arguments"]) + 1
        if head > limit:
            return [], []
        kept = cut(ids[head:-1], limit - head)
        return [ToolCall(part.id, part.name, decode(kept))], ids[:head] + kept
    return [], []


def _stopped(message: Message, stops: tuple[str, ...]) -> Message:
    """`message` up to the first stop string in its text."""
    parts = in_order(message) if stops else ()
    for index, part in enumerate(parts):
        if isinstance(part, Text):
            found = [at for at in (part.text.find(stop) for stop in stops if stop) if at >= 0]
            if found:
                return Message("assistant", (*parts[:index], Text(part.text[: min(found)])))
    return message


_GENERATE: Ids = column([SPECIAL["assistant"]], "i4")
