"""OpenAI responses."""

from __future__ import annotations

from rollwright.dialects.borders import OpenAiBorders

from .reader import ResponsesStreamReader
from .reply import read_reply, write_reply
from .request import FORM, write_request
from .writer import ResponsesStreamWriter


class ResponsesDialect(OpenAiBorders):
    name = FORM.name
    form = FORM
    path = "/v1/responses"

    read_reply = staticmethod(read_reply)
    stream_reader = ResponsesStreamReader
    stream_writer = ResponsesStreamWriter
    write_reply = staticmethod(write_reply)
    write_request = staticmethod(write_request)
