"""OpenAI chat completions, with token ids where both sides want them."""

from __future__ import annotations

from rollwright.dialects.borders import OpenAiBorders

from .reply import read_reply, write_reply
from .request import FORM, write_request
from .stream import ChatStreamReader, ChatStreamWriter


class ChatDialect(OpenAiBorders):
    name = FORM.name
    form = FORM
    path = "/v1/chat/completions"

    read_reply = staticmethod(read_reply)
    stream_reader = ChatStreamReader
    stream_writer = ChatStreamWriter
    write_reply = staticmethod(write_reply)
    write_request = staticmethod(write_request)
