"""Proof before any work: an engine whose tokens are to be trained on tells them, whole and streamed.

A router in between may strip fields that it does not know. Then every rollout would run to its end and none could be
trained on, and it is better to know that at the start."""

from __future__ import annotations

from rollwright.wire import Delta, End, EngineRefused, ModelCall, ModelReply, Sampling, user

from .contract import Engine


async def prove_tokens(engine: Engine, model: str) -> None:
    """Ask for a few words both ways. EngineRefused if token ids or logprobs are missing from either answer."""
    # Fewer than 16 tokens are refused by some reasoning models.
    call = ModelCall(model, (user("Say ok."),), sampling=Sampling(max_tokens=16), return_tokens=True)
    _check(model, "answers", await engine.complete(call))
    _check(model, "streams answers", await engine.stream(call, _Inattentive()))


class _Inattentive:
    """What is said does not matter here; the end says what it was made of."""

    def hear(self, delta: Delta) -> bool:
        return True

    async def ready(self) -> None:
        """It always is."""


def _check(model: str, does: str, answer: ModelReply | End) -> None:
    if answer.tokens is None or not len(answer.tokens.completion_ids):
        raise EngineRefused(f"model {model} {does} without token ids; batches need an engine that returns them")
