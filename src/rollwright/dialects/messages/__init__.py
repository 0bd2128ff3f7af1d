"""Anthropic messages."""

from __future__ import annotations

from rollwright.dialects.borders import Borders, error_kind
from rollwright.dialects.jsontext import dumps

from .counts import read_count, write_count_request
from .reply import error_out, read_reply, write_reply
from .reply import write_token_count as write_token_count
from .request import FORM, write_request
from .stream import MessagesStreamReader, MessagesStreamWriter

VERSION = "2023-06-01"


class MessagesDialect(Borders):
    name = FORM.name
    form = FORM
    path = "/v1/messages"

    read_reply = staticmethod(read_reply)
    stream_reader = MessagesStreamReader
    stream_writer = MessagesStreamWriter
    write_reply = staticmethod(write_reply)
    write_request = staticmethod(write_request)

    def headers(self, key: str) -> dict[str, str]:
        version = {"anthropic-version": VERSION}
        return {"x-api-key": key, **version} if key else version

    def write_error(self, status: int, message: str, kind: str = "") -> bytes:
        return dumps(error_out(message, kind or error_kind(status)))


class CountDialect(MessagesDialect):
    """The question how long a prompt is. Its answer is the usage of a reply that says nothing."""

    path = "/v1/messages/count_tokens"

    read_reply = staticmethod(read_count)
    write_request = staticmethod(write_count_request)
