"""OpenAI responses."""

from __future__ import annotations

from rollwright.dialects.borders import OpenAiBorders

from .reader import ResponsesStreamReader
from .reply import read_reply, write_reply
from .request import read_request, write_request
from .writer import ResponsesStreamWriter


class ResponsesDialect(OpenAiBorders):
    name = "responses"
    path = "/v1/responses"

    read_reply = staticmethod(read_reply)
    read_request = staticmethod(read_request)
    stream_reader = ResponsesStreamReader
    stream_writer = ResponsesStreamWriter
    write_reply = staticmethod(write_reply)
    write_request = staticmethod(write_request)
