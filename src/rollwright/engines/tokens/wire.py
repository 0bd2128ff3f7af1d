"""The two ways to hand ids to a vLLM server and get ids back: `/inference/v1/generate`, made for it, and
`/v1/completions` with ids for a prompt and `return_token_ids`. Requests are written and answers read here; there is no
socket and no text.

An answer is a ModelReply whose message is empty and whose tokens are what came. Where the server tells the ids that it
was shown, they are the prompt ids of those tokens; else these are empty. Routed experts begin at 0 here: an answer does
not say where they begin, and whoever asked knows.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
import numpy as np

from rollwright.dialects.borders import OpenAiBorders, raise_engine_error
from rollwright.dialects.chat.tokens import TokenId
from rollwright.dialects.jsontext import dumps, read
from rollwright.engines.endpoint import ClientSide
from rollwright.wire import CallTokens, Finish, ModelReply, Routing, Sampling, Usage, WireError, assistant
from rollwright.wire.arrays import Ids, column

from .routing import read_rows

_NO_IDS: Ids = np.empty(0, np.int32)
_FINISHES = {"stop": Finish.STOP, "length": Finish.LENGTH}


class TokenAsk(msgspec.Struct, frozen=True, eq=False):
    """What a server is asked: go on after these ids."""

    model: str
    ids: Ids
    sampling: Sampling
    stop_ids: tuple[int, ...]
    max_tokens: int | None
    """None: as many as the server has room for."""
    routed_from: int | None = None
    """The first position whose routed experts are wanted; None for none."""
    stream: bool = False
    content_parts: tuple[dict[str, Any], ...] = ()
    """The images that the placeholders stand for, in their order."""
    extra: dict[str, Any] = {}
    """Fields of the request that we do not know."""


class LogprobIn(msgspec.Struct):
    logprob: float


class LogprobsIn(msgspec.Struct):
    """Both shapes: of chat completions, which generate shares, and of completions."""

    content: list[LogprobIn] | None = None
    token_logprobs: list[float | None] | None = None

    def values(self) -> list[float]:
        if self.content is not None:
            return [entry.logprob for entry in self.content]
        # A server writes null for what JSON cannot say; no sampled token is impossible, so it is the least of floats.
        return [-9999.0 if value is None else value for value in self.token_logprobs or ()]


class ChoiceIn(msgspec.Struct):
    token_ids: list[TokenId] | None = None
    prompt_token_ids: list[TokenId] | None = None
    logprobs: LogprobsIn | None = None
    routed_experts: str | None = None
    finish_reason: str | None = None


class AnswerIn(msgspec.Struct):
    """A whole answer, or one piece of a stream."""

    choices: list[ChoiceIn] = []
    prompt_token_ids: list[TokenId] | None = None
    model: str | None = None
    policy_version: int = 0
    error: Any = None


_ANSWER = msgspec.json.Decoder(AnswerIn)


class TokenWire(ClientSide, Protocol):
    """One of the two ways."""

    @property
    def name(self) -> str: ...
    @property
    def takes_images(self) -> bool: ...
    def write_ask(self, ask: TokenAsk) -> bytes: ...


class GenerateWire(OpenAiBorders):
    """`POST /inference/v1/generate`, which vLLM serves where VLLM_ENABLE_SCALE_OUT_ENDPOINTS is set or always was."""

    name = "generate"
    path = "/inference/v1/generate"
    takes_images = True

    def write_ask(self, ask: TokenAsk) -> bytes:
        params: dict[str, Any] = {
            **_sampling(ask),
            "stop_token_ids": ask.stop_ids,
            # The stop token is what the model sampled, so it belongs to the answer.
            "skip_special_tokens": False,
            "logprobs": 1,
        }
        if ask.routed_from is not None:
            params["routed_experts_prompt_start"] = ask.routed_from
        body = {**ask.extra, "model": ask.model, "token_ids": ask.ids, "sampling_params": params, "stream": ask.stream}
        if ask.content_parts:
            body |= {"content_parts": ask.content_parts, "return_token_ids": True}
        return dumps(body)

    def read_reply(self, body: bytes) -> ModelReply:
        return read_answer(body)


class CompletionsWire(OpenAiBorders):
    """`POST /v1/completions` with ids."""

    name = "completions"
    path = "/v1/completions"
    takes_images = False

    def write_ask(self, ask: TokenAsk) -> bytes:
        body: dict[str, Any] = {
            **ask.extra,
            **_sampling(ask),
            "model": ask.model,
            "prompt": ask.ids,
            "stop_token_ids": ask.stop_ids,
            "skip_special_tokens": False,
            "logprobs": 1,
            "return_token_ids": True,
            "stream": ask.stream,
        }
        if ask.routed_from is not None:
            body["routed_experts_prompt_start"] = ask.routed_from
        return dumps(body)

    def read_reply(self, body: bytes) -> ModelReply:
        return read_answer(body)


class Gatherer:
    """The ids of one answer, from one body or from many pieces."""

    def __init__(self) -> None:
        self.finish: Finish | None = None
        self.model = ""
        self.policy_version = 0
        self._prompt: Ids = _NO_IDS
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._routing: Routing | None = None

    def take(self, body: bytes) -> list[int]:
        """The ids that this piece adds. EngineError for what the server tells of itself."""
        answer = read(_ANSWER, body, "the answer")
        if answer.error is not None:
            raise_engine_error(answer.error)
        self.model = answer.model or self.model
        self.policy_version = answer.policy_version or self.policy_version
        if answer.prompt_token_ids is not None:
            self._prompt = column(answer.prompt_token_ids, "i4")
        if not answer.choices:
            return []
        if len(answer.choices) > 1:
            raise WireError(f"one answer was asked for and {len(answer.choices)} came")
        return self._choice(answer.choices[0])

    def _choice(self, choice: ChoiceIn) -> list[int]:
        if choice.prompt_token_ids is not None:
            self._prompt = column(choice.prompt_token_ids, "i4")
        if choice.logprobs is not None:
            self._logprobs += choice.logprobs.values()
        if choice.routed_experts is not None:
            self._routing = Routing(0, read_rows(choice.routed_experts))
        if choice.finish_reason is not None:
            self.finish = _finish(choice.finish_reason)
        ids = choice.token_ids or []
        self._ids += ids
        return ids

    def tokens(self) -> CallTokens | None:
        """None where ids or logprobs are missing altogether: something between us and the engine took them."""
        if not self._ids or not self._logprobs:
            return None
        logprobs = np.maximum(column(self._logprobs, "f4"), np.float32(-9999.0))
        return CallTokens(self._prompt, column(self._ids, "i4"), logprobs, self._routing)


def read_answer(body: bytes) -> ModelReply:
    gatherer = Gatherer()
    gatherer.take(body)
    if gatherer.finish is None:
        raise WireError("the answer does not say why it ended")
    tokens = gatherer.tokens()
    usage = Usage(0, len(tokens.completion_ids)) if tokens else Usage()
    version, model = gatherer.policy_version, gatherer.model
    return ModelReply(assistant(""), gatherer.finish, usage, tokens, version, model)


def _finish(word: str) -> Finish:
    if word not in _FINISHES:
        raise WireError(f"the answer ended with {word!r}, which is neither stop nor length")
    return _FINISHES[word]


def _sampling(ask: TokenAsk) -> dict[str, Any]:
    sampling = ask.sampling
    wanted = {"temperature": sampling.temperature, "top_p": sampling.top_p, "seed": sampling.seed}
    fields: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    if sampling.stop:
        fields["stop"] = sampling.stop
    if ask.max_tokens is not None:
        fields["max_tokens"] = ask.max_tokens
    return fields


WIRES: dict[str, TokenWire] = {"generate": GenerateWire(), "completions": CompletionsWire()}
