"""OpenAI chat completions, with token ids where both sides want them."""

from __future__ import annotations

from rollwright.dialects import borders

from .reply import read_reply, write_reply
from .request import read_request, write_request
from .stream import ChatStreamReader, ChatStreamWriter


class ChatDialect:
    name = "chat"
    path = "/v1/chat/completions"

    headers = staticmethod(borders.bearer)
    read_error = staticmethod(borders.read_error)
    read_key = staticmethod(borders.read_key)
    read_reply = staticmethod(read_reply)
    read_request = staticmethod(read_request)
    stream_reader = ChatStreamReader
    stream_writer = ChatStreamWriter
    write_error = staticmethod(borders.write_openai_error)
    write_reply = staticmethod(write_reply)
    write_request = staticmethod(write_request)
