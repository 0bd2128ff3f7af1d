"""OpenAI responses."""

from __future__ import annotations

from rollwright.dialects import borders

from .reader import ResponsesStreamReader
from .reply import read_reply, write_reply
from .request import read_request, write_request
from .writer import ResponsesStreamWriter


class ResponsesDialect:
    name = "responses"
    path = "/v1/responses"

    headers = staticmethod(borders.bearer)
    read_error = staticmethod(borders.read_error)
    read_key = staticmethod(borders.read_key)
    read_reply = staticmethod(read_reply)
    read_request = staticmethod(read_request)
    stream_reader = ResponsesStreamReader
    stream_writer = ResponsesStreamWriter
    write_error = staticmethod(borders.write_openai_error)
    write_reply = staticmethod(write_reply)
    write_request = staticmethod(write_request)
