"""Token ids, logprobs and routed experts as chat completions carry them: lists outside, columns inside.

The shape is the one vLLM uses (`prompt_token_ids`, `token_ids`, `logprobs.content[].logprob`), with two fields of our
own: `routed_experts` as base64 of a typed array, and `policy_version`."""

from __future__ import annotations

import binascii
from base64 import b64encode
from typing import Annotated, Any

import numpy as np
import orjson
from msgspec import Meta, Struct

from rollwright.dialects.jsontext import dumps
from rollwright.wire import CallTokens, Routing, WireError
from rollwright.wire.arrays import NAMES, Logprobs, column
from rollwright.wire.codec import ArrayRef, raw_bytes, view_of

TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
_FLOOR = -9999.0
"""How minus infinity is written, since JSON has no word for it."""


class LogprobIn(Struct):
    logprob: float


class LogprobsIn(Struct):
    content: list[LogprobIn] | None = None


class ExpertsIn(Struct):
    start: int
    dtype: str
    shape: tuple[int, int, int]
    data: str


class ChoiceTokensIn(Struct):
    """The token fields of a choice, in a whole reply or in a chunk."""

    token_ids: list[TokenId] | None = None
    logprobs: LogprobsIn | None = None
    routed_experts: ExpertsIn | None = None


class TokenGatherer:
    """Collects the token fields of one answer, from one body or from many chunks."""

    def __init__(self) -> None:
        self._prompt: list[int] | None = None
        self._ids: list[int] = []
        self._sampled = False
        self._logprobs: list[float] = []
        self._routing: Routing | None = None

    def prompt(self, ids: list[int] | None) -> None:
        if ids is not None:
            self._prompt = ids

    def completion(self, choice: ChoiceTokensIn) -> None:
        if choice.token_ids is not None:
            self._sampled = True
            self._ids.extend(choice.token_ids)
        if choice.logprobs is not None and choice.logprobs.content:
            self._logprobs.extend([entry.logprob for entry in choice.logprobs.content])
        if choice.routed_experts is not None:
            self._routing = read_routing(choice.routed_experts)

    def tokens(self) -> CallTokens | None:
        """Nothing, unless both the prompt's ids and the answer's came: half of a sequence proves nothing."""
        if self._prompt is None or not self._sampled:
            return None
        return CallTokens(
            prompt_ids=column(self._prompt, "i4"),
            completion_ids=column(self._ids, "i4"),
            logprobs=column(self._logprobs, "f4"),
            routing=self._routing,
        )


def read_routing(experts: ExpertsIn) -> Routing:
    try:
        data = binascii.a2b_base64(experts.data, strict_mode=True)
    except ValueError as error:
        raise WireError(f"routed_experts.data is not base64: {error}") from error
    return Routing(experts.start, view_of(ArrayRef(experts.dtype, experts.shape, 0), data))


def prompt_fields(tokens: CallTokens) -> dict[str, Any]:
    """Fields at the top of a reply or a chunk."""
    return {"prompt_token_ids": tokens.prompt_ids}


def choice_fields(tokens: CallTokens) -> dict[str, Any]:
    """Fields of a choice."""
    fields: dict[str, Any] = {"token_ids": tokens.completion_ids, "logprobs": {"content": _logprobs_out(tokens)}}
    if tokens.routing is not None:
        rows = tokens.routing.rows
        data = b64encode(raw_bytes(rows)).decode("ascii")
        shape = list(rows.shape)
        fields["routed_experts"] = {
            "start": tokens.routing.start,
            "dtype": NAMES[rows.dtype],
            "shape": shape,
            "data": data,
        }
    return fields


def _logprobs_out(tokens: CallTokens) -> orjson.Fragment:
    """The list as text, because a dict for each of many thousand tokens costs four times as much."""
    if not len(tokens.logprobs):
        return orjson.Fragment(b"[]")
    numbers = dumps(_finite(tokens.logprobs))[1:-1].decode("ascii").split(",")
    # Clients of the official SDK expect a token's text; engines that speak ids name the id in its place.
    entries = [
        f'{{"token":"token_id:{id}","logprob":{number},"bytes":null,"top_logprobs":[]}}'
        for id, number in zip(tokens.completion_ids.tolist(), numbers, strict=True)
    ]
    return orjson.Fragment(f"[{','.join(entries)}]")


def _finite(logprobs: Logprobs) -> Logprobs:
    if np.isfinite(logprobs).all():
        return logprobs
    if np.isnan(logprobs).any() or np.isposinf(logprobs).any():
        raise WireError("a logprob is not a number at or below zero")
    return np.maximum(logprobs, np.float32(_FLOOR))
