"""Messages: what was said, by whom, in parts. Frozen, stored once, compared by value.

A tool call keeps its arguments as the text the model wrote. Parsing and printing JSON again is not the identity
(spaces, key order, escapes), and a conversation that was changed that way is no longer the one the engine sampled.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool"]


class Text(msgspec.Struct, frozen=True, gc=False, tag="text"):
    text: str


class Reasoning(msgspec.Struct, frozen=True, gc=False, tag="reasoning"):
    text: str
    signature: str = ""
    """Opaque proof that some providers want back unchanged."""


class Image(msgspec.Struct, frozen=True, gc=False, tag="image"):
    """An image by the SHA-256 of its bytes; the bytes live in a content store, once."""

    sha256: str
    media_type: str


class ToolCall(msgspec.Struct, frozen=True, gc=False, tag="tool_call"):
    id: str
    name: str
    arguments: str
    """The JSON text as the model wrote it, valid or not."""


class ToolResult(msgspec.Struct, frozen=True, gc=False, tag="tool_result"):
    call_id: str
    content: tuple[Text | Image, ...]
    is_error: bool = False


Part = Text | Reasoning | Image | ToolCall | ToolResult


class Message(msgspec.Struct, frozen=True, gc=False):
    role: Role
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """The visible text: no reasoning, no tool traffic."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def reasoning(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Reasoning))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCall))


class ToolSpec(msgspec.Struct, frozen=True, gc=False):
    """A tool as it is shown to a model."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    """A JSON schema of the arguments."""


def system(text: str) -> Message:
    return Message("system", (Text(text),))


def user(text: str) -> Message:
    return Message("user", (Text(text),))


def assistant(text: str, *tool_calls: ToolCall) -> Message:
    spoken: tuple[Part, ...] = (Text(text),) if text else ()
    return Message("assistant", spoken + tool_calls)


def tool_result(call_id: str, text: str, *, is_error: bool = False) -> Message:
    return Message("tool", (ToolResult(call_id, (Text(text),), is_error),))
