"""`/v1/messages/count_tokens`, as a client asks it: the request of a call without what sampling needs, and one number.

Other dialects have no such question."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from rollwright.dialects.images import Images
from rollwright.dialects.jsontext import dumps, read
from rollwright.wire import Finish, ModelCall, ModelReply, Usage, assistant

from .request import request_fields

WHAT = "the engine's count of tokens"


class CountIn(Struct):
    input_tokens: int


DECODER = msgspec.json.Decoder(CountIn)


def write_count_request(call: ModelCall, images: Images) -> bytes:
    """The endpoint refuses fields that say how to sample."""
    return dumps(request_fields(msgspec.structs.replace(call, stream=False), images, {}))


def read_count(body: bytes) -> ModelReply:
    """The number, as the usage of an answer that says nothing, so that it is carried like any other answer."""
    return ModelReply(assistant(""), Finish.STOP, Usage(read(DECODER, body, WHAT).input_tokens, 0))
