"""How long a prompt is, guessed. No engine is asked: a program that plans its context needs the order of magnitude."""

from __future__ import annotations

import msgspec

from rollwright.dialects.messages import write_token_count
from rollwright.wire import Image, Message, ModelCall, Part, Text, ToolResult

_CHARS_PER_TOKEN = 4
_TOKENS_PER_MESSAGE = 4
_TOKENS_PER_IMAGE = 1500


def count_tokens(call: ModelCall) -> bytes:
    """The body of an answer to `/v1/messages/count_tokens`."""
    tools = len(msgspec.json.encode(call.tools)) // _CHARS_PER_TOKEN if call.tools else 0
    return write_token_count(tools + sum(_message_tokens(message) for message in call.messages))


def _message_tokens(message: Message) -> int:
    return _TOKENS_PER_MESSAGE + sum(_part_tokens(part) for part in message.parts)


def _part_tokens(part: Part) -> int:
    if isinstance(part, Image):
        return _TOKENS_PER_IMAGE
    if isinstance(part, ToolResult):
        return sum(_part_tokens(piece) for piece in part.content)
    text = part.text if isinstance(part, Text) or not hasattr(part, "arguments") else part.arguments
    return -(-len(text) // _CHARS_PER_TOKEN)
