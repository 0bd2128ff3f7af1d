"""The scripted engine on token ids: prompts read as conversations, answers spoken in ids of a real vocabulary.

A prompt is read back by what was said here: the longest beginning that is a prompt and its answer stands for their
messages, and the text of the rest is one message of the user, control strings and all. Answers are sampled in ids that
a tokenizer would not choose, now and then, so that a client that tokenizes them again is found out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from random import Random

import msgspec
import numpy as np

from rollwright.renderers.contract import Renderer
from rollwright.wire import (
    CallTokens,
    Finish,
    Image,
    Message,
    ModelCall,
    ModelReply,
    Routing,
    Text,
    Usage,
    WireError,
    user,
)
from rollwright.wire.arrays import Ids, column

from .config import ScriptedConfig
from .conversations import draw
from .tape import draw_logprobs, route

PROMPT_IDS = "prompt_ids"
"""Where a call holds the ids of its prompt, among its unknown fields."""
WIDE_IDS = "wide_ids"
"""Likewise, the same ids with every image as wide as the model would see it."""
ROUTED_START = "routed_start"
"""Likewise, the first position whose routed experts are wanted."""

_MAX_TURNS = 16384
_UNUSUAL = 0.2
_NARROWEST, _WIDTHS = 2, 7


class Voice:
    """Ids in, ids out."""

    def __init__(self, config: ScriptedConfig, renderer: Renderer) -> None:
        self.renderer = renderer
        self._config = config
        self._asked = renderer.render((user("?"),))
        self._turns: OrderedDict[bytes, tuple[Message, ...]] = OrderedDict()

    def widen(self, ids: Ids, images: Sequence[Image]) -> Ids:
        """The ids with the placeholder of each image repeated, as often as its hash says."""
        places = self._pictures(ids)
        if len(places) != len(images):
            raise WireError(f"the prompt has room for {len(places)} images and {len(images)} came")
        counts = np.ones(len(ids), np.int64)
        counts[places] = [_NARROWEST + int(image.sha256[:2], 16) % _WIDTHS for image in images]
        return np.repeat(ids, counts)

    def _pictures(self, ids: Ids) -> list[int]:
        """Where the tokens stand that images are widened from: the middle of what the format puts for an image."""
        frame = np.array(self.renderer.image_ids, np.int32)
        if not len(frame) or len(ids) < len(frame):
            return []
        found = np.flatnonzero((np.lib.stride_tricks.sliding_window_view(ids, len(frame)) == frame).all(axis=1))
        return [int(at) + len(frame) // 2 for at in found]

    def hear(self, ids: Ids, images: Sequence[Image] = ()) -> tuple[Message, ...]:
        """The conversation of a prompt."""
        known: tuple[Message, ...] = ()
        start, done, state = 0, 0, blake2b(digest_size=16)
        for stop in np.flatnonzero(np.isin(ids, self.renderer.stop_ids)).tolist():
            # An answer ends with its stop token, or before the one that the client put after a cut answer.
            for end in (stop, stop + 1):
                state.update(ids[done:end].tobytes())
                done = end
                found = self._turns.get(state.digest())
                if found is not None:
                    known, start = found, end
        new = images[len(self._pictures(ids[:start])) :] if images else ()
        return (*known, Message("user", (Text(self.renderer.engine.decode(ids[start:])), *new)))

    def speak(self, call: ModelCall, reply: ModelReply, conversation: bytes) -> ModelReply:
        """The reply in ids, cut where the call wants it cut, and remembered."""
        prompt: Ids = call.extra[PROMPT_IDS]
        wide: Ids = call.extra[WIDE_IDS]
        ids = self._sampled(reply.message, draw(self._config.seed, "ids", conversation, 0))
        limit = call.sampling.max_tokens
        finish = Finish.STOP
        if limit is not None and len(ids) > limit:
            ids, finish = ids[:limit], Finish.LENGTH
        self._remember(np.concatenate([prompt, ids]), (*call.messages, reply.message))
        tokens = None
        if self._config.tokens:
            logprobs = draw_logprobs(draw(self._config.seed, "logprobs", conversation, 0), len(ids))
            tokens = CallTokens(wide, ids, logprobs, self._routing(np.concatenate([wide, ids]), call))
        told = {"finish": finish, "usage": Usage(len(wide), len(ids)), "tokens": tokens}
        return msgspec.structs.replace(reply, model=reply.model or call.model, **told)

    def _routing(self, whole: Ids, call: ModelCall) -> Routing | None:
        if not self._config.routed_layers or not self._config.routed_topk:
            return None
        return route(whole, call.extra.get(ROUTED_START) or 0, self._config)

    def _sampled(self, message: Message, rng: Random) -> Ids:
        ids: list[int] = []
        engine = self.renderer.engine
        controls = set(engine.specials.values())
        for id in self.renderer.answer(self._asked, message).tolist():
            text = engine.token_bytes(id).decode(errors="replace")
            if id not in controls and len(text) > 1 and "\ufffd" not in text and rng.random() < _UNUSUAL:
                ids += engine.encode(text[:1]).tolist() + engine.encode(text[1:]).tolist()
            else:
                ids.append(id)
        return column(ids, "i4")

    def _remember(self, ids: Ids, messages: tuple[Message, ...]) -> None:
        self._turns[blake2b(ids.tobytes(), digest_size=16).digest()] = messages
        if len(self._turns) > _MAX_TURNS:
            self._turns.popitem(last=False)


def make_voice(config: ScriptedConfig, renderer: Renderer | None) -> Voice | None:
    """None where the settings name no vocabulary and no renderer is given."""
    if renderer is None and config.tokenizer:
        from rollwright.renderers import load_engine, renderer_for

        renderer = renderer_for(load_engine(config.tokenizer), model=config.family)
    return Voice(config, renderer) if renderer is not None else None
