"""The server's side of the two paths that take ids: requests read, answers written, whole or in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from rollwright.dialects import Images
from rollwright.dialects.borders import OpenAiBorders
from rollwright.dialects.chat.tokens import TokenId
from rollwright.dialects.images import split_data_url
from rollwright.dialects.jsontext import dumps, read
from rollwright.dialects.sse import sse
from rollwright.engines.tokens.routing import write_rows
from rollwright.wire import Image, ModelCall, ModelReply, Sampling, WireError
from rollwright.wire.arrays import column

from .config import ScriptedConfig
from .voice import PROMPT_IDS, ROUTED_START, WIDE_IDS, Voice

TELLS_PROMPT = "tells_prompt"
"""Where a call says, among its unknown fields, that the ids of the prompt come with the answer."""

_DONE = sse(b"[DONE]")
_PIECES = 8
_DEFAULT_MAX_TOKENS = 16


class Params(msgspec.Struct):
    """How to sample: a part of a generate request, and on the same level as its prompt in completions."""

    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | msgspec.UnsetType | None = msgspec.UNSET
    stop: list[str] | None = None
    logprobs: int | None = None
    stop_token_ids: list[int] | None = None
    routed_experts_prompt_start: int = 0


class PartIn(msgspec.Struct, tag_field="type", tag="image_url"):
    url: str


class GenerateIn(msgspec.Struct):
    token_ids: list[TokenId]
    sampling_params: Params
    model: str = ""
    stream: bool = False
    content_parts: list[PartIn] = []
    return_token_ids: bool = False


class CompletionIn(Params):
    prompt: list[TokenId] = []
    model: str = ""
    stream: bool = False
    return_token_ids: bool = False


_GENERATE = msgspec.json.Decoder(GenerateIn)
_COMPLETION = msgspec.json.Decoder(CompletionIn)


class IdDialect(OpenAiBorders):
    """One path. Calls carry their ids among the unknown fields, and the conversation that the ids stand for."""

    def __init__(self, name: str, path: str, config: ScriptedConfig, voice: Voice) -> None:
        self.name = name
        self.path = path
        self._config = config
        self._voice = voice

    def read_request(self, body: bytes, images: Images) -> ModelCall:
        if self.name == "generate":
            asked = read(_GENERATE, body, "the request")
            pictures = [images.put_text(*split_data_url(part.url))[0] for part in asked.content_parts]
            call = self._call(asked.token_ids, asked.sampling_params, asked.model, asked.stream, True, pictures)
            return msgspec.structs.replace(call, extra={**call.extra, TELLS_PROMPT: asked.return_token_ids})
        told = read(_COMPLETION, body, "the request")
        call = self._call(told.prompt, told, told.model, told.stream, told.return_token_ids)
        return msgspec.structs.replace(call, extra={**call.extra, TELLS_PROMPT: True})

    def _call(
        self,
        ids: list[int],
        params: Params,
        model: str,
        stream: bool,
        return_tokens: bool,
        images: Sequence[Image] = (),
    ) -> ModelCall:
        if not ids:
            raise WireError("a prompt needs at least one id")
        if max(ids) >= self._voice.renderer.engine.size:
            raise WireError(f"id {max(ids)} is not in the vocabulary")
        prompt = column(ids, "i4")
        wide = self._voice.widen(prompt, images)
        wanted = self._wanted(params.max_tokens, len(wide), bool(images))
        if not 0 <= params.routed_experts_prompt_start < len(wide):
            raise WireError("routed_experts_prompt_start must be a position of the prompt")
        return ModelCall(
            model,
            self._voice.hear(prompt, images),
            sampling=Sampling(params.temperature, params.top_p, wanted, params.seed, tuple(params.stop or ())),
            stream=stream,
            return_tokens=return_tokens and params.logprobs is not None,
            extra={PROMPT_IDS: prompt, WIDE_IDS: wide, ROUTED_START: params.routed_experts_prompt_start},
        )

    def _wanted(self, told: int | msgspec.UnsetType | None, length: int, pictured: bool) -> int | None:
        """How long the answer may be. A client that says nothing gets vLLM's own default, short as it was, and finds
        out; beside images, whose width it cannot know, it gets what is left."""
        limit = self._config.context_tokens
        if told is msgspec.UNSET:
            told = _DEFAULT_MAX_TOKENS if not pictured else max(limit - length, 1) if limit else None
        if limit and length + (told or 1) > limit:
            raise WireError(f"{length} ids and an answer of {told} are over the context of {limit}")
        return told

    def frames(self, reply: ModelReply, call: ModelCall) -> list[bytes]:
        """The answer in the pieces in which it is sent; a whole one is one piece."""
        tells = bool(call.extra.get(TELLS_PROMPT))
        if not call.stream:
            return [dumps(self._answer(reply, 0, reply.usage.completion_tokens, last=True, tells=tells))]
        count = reply.usage.completion_tokens
        cuts = np.linspace(0, count, min(_PIECES, max(count, 1)) + 1).astype(int).tolist()
        spans = pairwise(cuts)
        pieces = [self._answer(reply, start, stop, last=stop == count, tells=tells) for start, stop in spans]
        return [*(sse(dumps(piece)) for piece in pieces), _DONE]

    def _answer(self, reply: ModelReply, start: int, stop: int, *, last: bool, tells: bool) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": str(reply.finish) if last else None}
        answer = {"model": reply.model, "choices": [choice], "policy_version": reply.policy_version}
        tokens = reply.tokens
        if tokens is not None:
            choice["token_ids"] = tokens.completion_ids[start:stop]
            choice["logprobs"] = self._logprobs(tokens.logprobs[start:stop].tolist())
            if tells and not start:
                (choice if self.name == "completions" else answer)["prompt_token_ids"] = tokens.prompt_ids
            if tokens.routing is not None and last:
                choice["routed_experts"] = write_rows(tokens.routing.rows)
        return answer

    def _logprobs(self, values: list[float]) -> dict[str, Any]:
        if self.name == "generate":
            return {"content": [{"token": "", "logprob": value, "top_logprobs": []} for value in values]}
        return {"token_logprobs": values}


def id_dialects(config: ScriptedConfig, voice: Voice) -> dict[str, IdDialect]:
    paths = {"generate": "/inference/v1/generate", "completions": "/v1/completions"}
    return {path: IdDialect(name, path, config, voice) for name, path in paths.items()}


def write_id_models(names: Sequence[str], config: ScriptedConfig) -> bytes:
    limit = {"max_model_len": config.context_tokens} if config.context_tokens else {}
    return dumps({"object": "list", "data": [{"id": name, "object": "model", **limit} for name in names]})
