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
from rollwright.dialects.jsontext import dumps, read
from rollwright.dialects.sse import sse
from rollwright.engines.tokens.routing import write_rows
from rollwright.wire import ModelCall, ModelReply, Sampling, WireError
from rollwright.wire.arrays import column

from .config import ScriptedConfig
from .voice import PROMPT_IDS, ROUTED_START, Voice

_DONE = sse(b"[DONE]")
_PIECES = 8
_DEFAULT_MAX_TOKENS = 16


class Params(msgspec.Struct):
    """How to sample: a part of a generate request, and on the same level as its prompt in completions."""

    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    # vLLM's own default, short as it is: a client that does not say finds out here.
    max_tokens: int | None = _DEFAULT_MAX_TOKENS
    stop: list[str] | None = None
    logprobs: int | None = None
    stop_token_ids: list[int] | None = None
    routed_experts_prompt_start: int = 0


class GenerateIn(msgspec.Struct):
    token_ids: list[TokenId]
    sampling_params: Params
    model: str = ""
    stream: bool = False


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
            generate = read(_GENERATE, body, "the request")
            return self._call(generate.token_ids, generate.sampling_params, generate.model, generate.stream, True)
        asked = read(_COMPLETION, body, "the request")
        return self._call(asked.prompt, asked, asked.model, asked.stream, asked.return_token_ids)

    def _call(self, ids: list[int], params: Params, model: str, stream: bool, return_tokens: bool) -> ModelCall:
        if not ids:
            raise WireError("a prompt needs at least one id")
        if max(ids) >= self._voice.renderer.engine.size:
            raise WireError(f"id {max(ids)} is not in the vocabulary")
        limit, wanted = self._config.context_tokens, params.max_tokens
        if limit and len(ids) + (wanted or 1) > limit:
            raise WireError(f"{len(ids)} ids and an answer of {wanted} are over the context of {limit}")
        if not 0 <= params.routed_experts_prompt_start < len(ids):
            raise WireError("routed_experts_prompt_start must be a position of the prompt")
        prompt = column(ids, "i4")
        return ModelCall(
            model,
            self._voice.hear(prompt),
            sampling=Sampling(params.temperature, params.top_p, wanted, params.seed, tuple(params.stop or ())),
            stream=stream,
            return_tokens=return_tokens and params.logprobs is not None,
            extra={PROMPT_IDS: prompt, ROUTED_START: params.routed_experts_prompt_start},
        )

    def frames(self, reply: ModelReply, call: ModelCall) -> list[bytes]:
        """The answer in the pieces in which it is sent; a whole one is one piece."""
        if not call.stream:
            return [dumps(self._answer(reply, 0, reply.usage.completion_tokens, last=True))]
        count = reply.usage.completion_tokens
        cuts = np.linspace(0, count, min(_PIECES, max(count, 1)) + 1).astype(int).tolist()
        spans = pairwise(cuts)
        pieces = [self._answer(reply, start, stop, last=stop == count) for start, stop in spans]
        return [*(sse(dumps(piece)) for piece in pieces), _DONE]

    def _answer(self, reply: ModelReply, start: int, stop: int, *, last: bool) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": str(reply.finish) if last else None}
        tokens = reply.tokens
        if tokens is not None:
            choice["token_ids"] = tokens.completion_ids[start:stop]
            choice["logprobs"] = self._logprobs(tokens.logprobs[start:stop].tolist())
            if self.name == "completions" and not start:
                choice["prompt_token_ids"] = tokens.prompt_ids
            if tokens.routing is not None and last:
                choice["routed_experts"] = write_rows(tokens.routing.rows)
        return {"model": reply.model, "choices": [choice], "policy_version": reply.policy_version}

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
