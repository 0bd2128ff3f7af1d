"""Proof before any work: an engine whose tokens are to be trained on tells them, whole and streamed.

A router in between may strip fields that it does not know. Then every rollout would run to its end and none could be
trained on, and it is better to know that at the start."""

from __future__ import annotations

from contextlib import aclosing

from rollwright.wire import EngineRefused, ModelCall, ModelReply, Sampling, reply_of, user

from .contract import Engine


async def prove_tokens(engine: Engine, model: str) -> None:
    """Ask for a few words both ways. EngineRefused if token ids or logprobs are missing from either answer."""
    # Fewer than 16 tokens are refused by some reasoning models.
    call = ModelCall(model, (user("Say ok."),), sampling=Sampling(max_tokens=16), return_tokens=True)
    _check(model, "answers", await engine.complete(call))
    async with aclosing(engine.stream(call)) as events:
        _check(model, "streams answers", reply_of([event async for event in events]))


def _check(model: str, does: str, reply: ModelReply) -> None:
    if reply.tokens is None or not len(reply.tokens.completion_ids):
        raise EngineRefused(f"model {model} {does} without token ids; batches need an engine that returns them")
