"""How long a prompt is: as the engine counts it where it can, else guessed from its length. A program that plans its
context needs at least the order of magnitude."""

from __future__ import annotations

import msgspec

from rollwright.dialects.messages import write_token_count
from rollwright.harnesses import Session
from rollwright.wire import Image, Message, ModelCall, Part, Text, ToolResult

_CHARS_PER_TOKEN = 4
_TOKENS_PER_MESSAGE = 4
_TOKENS_PER_IMAGE = 1500


async def count_tokens(session: Session, call: ModelCall) -> bytes:
    """The body of an answer to `/v1/messages/count_tokens`."""
    counted = await session.count(call)
    return write_token_count(guessed(call) if counted is None else counted)


def guessed(call: ModelCall) -> int:
    tools = len(msgspec.json.encode(call.tools)) // _CHARS_PER_TOKEN if call.tools else 0
    return tools + sum(_message_tokens(message) for message in call.messages)


def _message_tokens(message: Message) -> int:
    return _TOKENS_PER_MESSAGE + sum(_part_tokens(part) for part in message.parts)


def _part_tokens(part: Part) -> int:
    if isinstance(part, Image):
        return _TOKENS_PER_IMAGE
    if isinstance(part, ToolResult):
        return sum(_part_tokens(piece) for piece in part.content)
    text = part.text if isinstance(part, Text) or not hasattr(part, "arguments") else part.arguments
    return -(-len(text) // _CHARS_PER_TOKEN)
