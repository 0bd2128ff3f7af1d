"""What a renderer has to show before it is used: a known conversation, rendered as the tokenizer reads it and parsed
back to what was said. A slot that was spoiled while it was built gives other ids, or none."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from rollwright.wire import Image, Message, Text, ToolResult, ToolSpec, UsageError, assistant, reply_of, user

from .contract import Renderer

_QUESTION = "What is 7 times 6? Zwölf, 十二, 🎲."
_ANSWER = "It is 42.\n\n\tSo: ü, 四十二 🎯"
_TALK = (user(_QUESTION), assistant("First: 7 × 6."), user("And then?  "))


class Proof:
    """The ids that every slot must give."""

    def __init__(self, first: Renderer) -> None:
        tape = first.render(_TALK)
        # The second opinion: the words in order, and the same ids when the tokenizer reads the whole text at once.
        text = first.engine.decode(tape.ids)
        if not np.array_equal(first.engine.encode(text), tape.ids):
            raise UsageError(
                f"the family {first.family} and its tokenizer disagree about the known render; choose another"
            )
        at = 0
        for message in _TALK:
            at = text.find(message.text.strip(), at)
            if at < 0:
                raise UsageError(
                    f"the known render of the family {first.family} lacks {message.text!r}; choose another"
                )
        self._ids = tape.ids.copy()
        self._answer = first.answer(tape, assistant(_ANSWER))
        self.proven(first)

    def proven(self, renderer: Renderer) -> Renderer:
        """`renderer` itself; UsageError unless it gives these ids and reads an answer as it was written."""
        tape = renderer.render(_TALK)
        if not np.array_equal(tape.ids, self._ids):
            raise UsageError("a renderer gave other ids than the first for the known render")
        parser = renderer.parser(tape)
        message = reply_of([*parser.feed(self._answer), *parser.end()]).message
        if message.text + message.reasoning != _ANSWER:
            raise UsageError(f"a renderer read {message.text!r} where {_ANSWER!r} was written")
        return renderer


def text_size(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> int:
    """About how many characters there are to encode."""
    size = sum(len(msgspec.json.encode(tool.parameters)) + len(tool.description) for tool in tools)
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolResult):
                size += sum(len(inner.text) for inner in part.content if isinstance(inner, Text))
            elif not isinstance(part, Image):
                size += len(part.text) if not hasattr(part, "arguments") else len(part.arguments)
    return size
