"""Tapes: the token ids of a conversation as the engine saw them, grown in place.

A call that continues another shares its buffer and adds only what is new; a call that branches off gets a buffer of
its own. So a rollout of N turns writes each id once, and checking that a prompt continues a tape is one comparison of
memory.
"""

from __future__ import annotations

import numpy as np

from rollwright.wire import CallTokens, TokenSegment
from rollwright.wire.arrays import Ids


class _Buffer:
    """An array of ids that grows by doubling. What was written is never changed."""

    __slots__ = ("ids", "length")

    def __init__(self, ids: Ids) -> None:
        self.ids = ids
        self.length = len(ids)

    def append(self, more: Ids) -> None:
        need = self.length + len(more)
        if need > len(self.ids):
            grown = np.empty(max(need, 2 * len(self.ids)), np.int32)
            grown[: self.length] = self.ids[: self.length]
            self.ids = grown
        self.ids[self.length : need] = more
        self.length = need


class Tapes:
    """The tape of every call of one rollout. Call numbers are the trace's own."""

    def __init__(self) -> None:
        self._buffer: dict[int, _Buffer] = {}
        self._length: dict[int, int] = {}
        self._base: dict[int, int] = {}

    def segment(self, call: int, previous: int, tokens: CallTokens) -> TokenSegment:
        """What `call` added to the tape of the nearest earlier call that its prompt continues exactly.

        `previous` is the call that sampled the last answer in the prompt. If the engine was shown something else than
        that tape (a template that drops reasoning, a rewritten history), an older tape is tried; with none, the segment
        stands alone.
        """
        base = self._longest_prefix(previous, tokens.prompt_ids)
        known = self._length.get(base, 0)
        prompt = tokens.prompt_ids[known:]
        ids = np.concatenate([prompt, tokens.completion_ids])
        sampled = np.zeros(len(ids), np.bool_)
        sampled[len(prompt) :] = True
        logprobs = np.zeros(len(ids), np.float32)
        logprobs[len(prompt) :] = tokens.logprobs
        self._remember(call, base, ids)
        return TokenSegment(base, ids, sampled, logprobs, tokens.routing)

    def _longest_prefix(self, call: int, prompt: Ids) -> int:
        if call not in self._buffer:
            return -1
        length = min(self._length[call], len(prompt))
        differs = np.flatnonzero(self._buffer[call].ids[:length] != prompt[:length])
        agreed = int(differs[0]) if len(differs) else length
        # Tapes along one chain are prefixes of one another, so the first difference decides for all of them.
        while call >= 0 and self._length[call] > agreed:
            call = self._base[call]
        return call

    def _remember(self, call: int, base: int, ids: Ids) -> None:
        known = self._length.get(base, 0)
        buffer = self._buffer.get(base)
        if buffer is None:
            buffer = _Buffer(ids)
        elif buffer.length == known:
            buffer.append(ids)
        else:
            buffer = _Buffer(np.concatenate([buffer.ids[:known], ids]))
        self._buffer[call] = buffer
        self._length[call] = known + len(ids)
        self._base[call] = base
