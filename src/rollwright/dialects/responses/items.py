"""Items of the Responses API, to and from parts.

An answer is a list of items there (reasoning, message, call) and one assistant message here, so neighbouring items of
the model are one message. Some programs send each call of an answer next to its output: calls that the model is known
to have made in one answer are one message too, with the outputs behind it. Items of tools that the provider runs are no
part of a message; kinds that we do not know are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from msgspec import Raw, Struct

from rollwright.dialects.forms import Around, Group, ToolWay
from rollwright.dialects.images import Images, get_data_url
from rollwright.dialects.jsontext import new_id
from rollwright.dialects.requests import split_heard, write_content
from rollwright.wire import Image, Message, Part, Reasoning, Role, Text, ToolCall, ToolResult, WireError

from .calls import CALLS, FUNCTION, OUTPUTS, PLAIN, SHELL, called, called_out, in_namespace

TEXT_TYPES = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
_ELSEWHERE = frozenset({
    "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "computer_call",
    "mcp_call", "mcp_list_tools", "compaction", "compaction_summary",
})  # fmt: skip
"""What the provider does or keeps on its own. It is said by the model's side, and only the provider understands it."""
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}


class ContentIn(Struct):
    type: str
    text: str = ""
    refusal: str = ""
    image_url: str | None = None


class ItemIn(Struct):
    """One wide struct for all kinds, because the type of a message may be left out."""

    type: str = "message"
    role: str = ""
    content: str | list[ContentIn] | None = None
    id: str | None = None
    call_id: str | None = None
    name: str = ""
    namespace: str | None = None
    arguments: str = ""
    input: str = ""
    action: Raw = Raw(b"{}")
    output: str | list[ContentIn] | None = None
    summary: list[ContentIn] | None = None
    encrypted_content: str | None = None

    @property
    def is_said(self) -> bool:
        return self.is_call or self.type == "reasoning" or self.type in _ELSEWHERE or self.is_words

    @property
    def is_words(self) -> bool:
        return self.type == "message" and self.role == "assistant"

    @property
    def is_call(self) -> bool:
        return self.type in CALLS

    @property
    def called(self) -> str:
        """The id of the call that it is or answers. The shell's may be that of the item."""
        return self.call_id or (self.id or "" if self.type.startswith(SHELL) else "")

    @property
    def tool(self) -> str:
        """The name of the tool that it calls."""
        return in_namespace(self.namespace, self.name)


def read_items(items: Sequence[ItemIn], around: Around) -> Iterator[Group]:
    """The conversation. What the model said in one go is one message, and one group with what stands within it."""
    at = 0
    while at < len(items):
        group = _read_said(items, at, around) if items[at].is_said else Group(1, (_heard(items[at], around),))
        at += group.elements
        yield group


def _read_said(items: Sequence[ItemIn], at: int, around: Around) -> Group:
    said: list[Part] = []
    outputs: list[Message] = []
    made: set[str] = set()
    """Calls of this answer that were met."""
    awaited: set[str] = set()
    """Calls of this answer that were not."""
    end = at
    while end < len(items):
        item = items[end]
        if item.is_said and (not outputs or item.called in awaited):
            said += _said(item, around)
            made.add(item.called)
            awaited = (awaited | around.siblings(item.called)) - made
        elif item.type in OUTPUTS and awaited and item.called in made:
            outputs.append(_heard(item, around))
        else:
            break
        end += 1
    closed = bool(outputs) and not awaited
    return Group(end - at, (Message("assistant", tuple(said)), *outputs) if said else tuple(outputs), closed)


def _said(item: ItemIn, around: Around) -> Iterator[Part]:
    if item.is_call:
        call = read_call(item)
        yield around.call(call.id, call.name, call.arguments)
    elif item.type == "reasoning":
        yield Reasoning(reasoning_text(item), item.encrypted_content or "")
    elif item.is_words:
        yield from (part for part in _content(item.content, around) if part != Text(""))


def read_call(item: ItemIn) -> ToolCall:
    name, arguments = called(item.type, item.tool, item.arguments, item.input, item.action)
    if not (item.called and name):
        raise WireError(f"a {item.type} item needs a call_id and a name")
    return ToolCall(item.called, name, arguments)


def reasoning_text(item: ItemIn) -> str:
    """The reasoning itself where it is shown, its summary otherwise."""
    content = "".join(part.text for part in item.content or () if isinstance(part, ContentIn))
    return content or "\n\n".join(part.text for part in item.summary or ())


def _heard(item: ItemIn, around: Around) -> Message:
    if item.type in OUTPUTS:
        if not item.called:
            raise WireError(f"a {item.type} item needs a call_id")
        return Message("tool", (ToolResult(item.called, _content(item.output, around)),))
    if item.type == "item_reference":
        raise WireError("an input item refers to one that was sent before; nothing is kept here, so send it whole")
    if item.type != "message":
        raise WireError(f"input items of type {item.type[:60]!r} are not known here")
    if item.role not in _ROLES:
        raise WireError(f"a message has the role {item.role[:60]!r}; it must be one of {', '.join(_ROLES)}")
    return Message(_ROLES[item.role], _content(item.content, around))


def _content(content: str | list[ContentIn] | None, around: Around) -> tuple[Text | Image, ...]:
    if content is None:
        return ()
    if isinstance(content, str):
        return (Text(content),)
    return tuple(_part(part, around) for part in content)


def _part(part: ContentIn, around: Around) -> Text | Image:
    if part.type in TEXT_TYPES:
        return Text(part.text)
    if part.type == "refusal":
        return Text(part.refusal)
    if part.type == "input_image" and part.image_url is not None:
        return around.image_at(part.image_url)
    raise WireError(f"content of type {part.type[:60]!r} is not known here, or not without its bytes")


def write_items(message: Message, images: Images, ways: Mapping[str, ToolWay]) -> Iterator[dict[str, Any]]:
    """One message of a conversation as input items. A call stands in the namespace that the request has its tool in."""
    if message.role == "assistant":
        yield from _write_said(message, ways)
        return
    results, content = split_heard(message)
    for result in results:
        output = write_content(result.content, _write_part, images)
        yield {"type": "function_call_output", "call_id": result.call_id, "output": output}
    if content is not None:
        yield {"type": "message", "role": message.role, "content": write_content(content, _write_part, images)}


def _write_said(message: Message, ways: Mapping[str, ToolWay]) -> Iterator[dict[str, Any]]:
    for is_text, run in groupby(message.parts, key=lambda part: isinstance(part, Text)):
        if is_text:
            texts = [{"type": "output_text", "text": part.text} for part in run if isinstance(part, Text)]
            yield {"type": "message", "role": "assistant", "content": texts}
        else:
            yield from (_write_other(part, ways) for part in run)


def _write_other(part: Part, ways: Mapping[str, ToolWay]) -> dict[str, Any]:
    if isinstance(part, ToolCall):
        return {"type": FUNCTION, **called_out(part, ways.get(part.name, PLAIN)), "arguments": part.arguments}
    if isinstance(part, Reasoning):
        return _write_reasoning(part)
    raise WireError(f"an assistant message cannot hold a {type(part).__name__}")


def _write_reasoning(part: Reasoning) -> dict[str, Any]:
    """A provider that signs its reasoning shows a summary and refuses more; an open model takes its own words back."""
    item: dict[str, Any] = {"type": "reasoning", "id": new_id("rs_"), "summary": []}
    if part.signature:
        item["encrypted_content"] = part.signature
        item["summary"] = [{"type": "summary_text", "text": part.text}] if part.text else []
    else:
        item["content"] = [{"type": "reasoning_text", "text": part.text}]
    return item


def _write_part(part: Text | Image, images: Images) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "input_text", "text": part.text}
    return {"type": "input_image", "detail": "auto", "image_url": get_data_url(images, part)}
