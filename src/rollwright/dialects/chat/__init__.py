"""OpenAI chat completions, with token ids where both sides want them."""

from __future__ import annotations

from collections.abc import Mapping

from rollwright.dialects import borders
from rollwright.dialects.contract import StreamReader, StreamWriter
from rollwright.dialects.images import Images
from rollwright.dialects.jsontext import dumps
from rollwright.wire import ModelCall, ModelReply

from .reply import read_reply, write_reply
from .request import read_request, write_request
from .stream import ChatStreamReader, ChatStreamWriter


class ChatDialect:
    name = "chat"
    path = "/v1/chat/completions"

    def headers(self, key: str) -> dict[str, str]:
        return borders.bearer(key)

    def write_request(self, call: ModelCall, images: Images) -> bytes:
        return write_request(call, images)

    def read_reply(self, body: bytes) -> ModelReply:
        return read_reply(body)

    def stream_reader(self) -> StreamReader:
        return ChatStreamReader()

    def read_error(self, status: int, body: bytes) -> str:
        return borders.read_error(status, body)

    def read_key(self, headers: Mapping[str, str]) -> str:
        return borders.read_key(headers)

    def read_request(self, body: bytes, images: Images) -> ModelCall:
        return read_request(body, images)

    def write_reply(self, reply: ModelReply, call: ModelCall) -> bytes:
        return write_reply(reply, call)

    def stream_writer(self, call: ModelCall) -> StreamWriter:
        return ChatStreamWriter(call)

    def write_error(self, status: int, message: str, kind: str = "") -> bytes:
        return dumps(borders.openai_error(message, kind or borders.error_kind(status)))
