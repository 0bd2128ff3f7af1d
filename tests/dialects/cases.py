"""Calls and replies that a dialect can say without loss, and helpers that play them.

What a dialect has no word for (a signature in chat, a finish reason in responses) is documented in its module and left
out here, so that the laws below hold without exceptions."""

from __future__ import annotations

import json
from itertools import chain, pairwise

import msgspec
import numpy as np
from hypothesis import strategies as st

from rollwright.dialects import DIALECTS, ImageStore
from rollwright.wire import (
    CallTokens,
    Finish,
    Message,
    ModelCall,
    ModelReply,
    Reasoning,
    Routing,
    Sampling,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
    events_of,
)

IMAGES = ImageStore()
NAMES = tuple(DIALECTS)

texts = st.text(st.characters(codec="utf-8"), max_size=12)
said = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
names = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)
json_objects = st.dictionaries(texts, json_values, max_size=3)
images = st.builds(IMAGES.put, st.binary(max_size=20), st.sampled_from(["image/png", "image/jpeg"]))
_spacings = st.sampled_from(
    [{"indent": 1}, {"separators": (" , ", " : ")}, {"separators": (",", ":")}, {"ensure_ascii": False}]
)
arguments = st.builds(lambda value, how: json.dumps(value, **how), json_objects, _spacings) | said.map(
    str.strip
).filter(bool)
"""As models write them: any spacing, and not always JSON."""
calls = st.builds(ToolCall, names, names, arguments)


def heard(role: str) -> st.SearchStrategy[Message]:
    parts = st.lists(st.builds(Text, texts) | (images if role == "user" else st.nothing()), max_size=3)
    return parts.map(lambda parts: Message(role, tuple(parts)))


def reasonings(dialect: str) -> st.SearchStrategy[Reasoning]:
    if dialect == "chat":
        return st.builds(Reasoning, said)
    return st.builds(Reasoning, said, names) | st.builds(Reasoning, said)


def assistants(dialect: str) -> st.SearchStrategy[Message]:
    text, reasoning = st.builds(Text, said), reasonings(dialect)
    if dialect == "chat":
        pieces = st.tuples(st.lists(reasoning, max_size=1), st.lists(text, max_size=2), st.lists(calls, max_size=3))
        return pieces.map(lambda kinds: Message("assistant", tuple(chain(*kinds))))
    return st.lists(text | reasoning | calls, min_size=1, max_size=4).map(
        lambda parts: Message("assistant", tuple(parts))
    )


def results(dialect: str) -> st.SearchStrategy[Message]:
    errors = st.booleans() if dialect == "messages" else st.just(False)
    content = st.lists(st.builds(Text, texts) | images, max_size=3).map(tuple)
    return st.builds(ToolResult, names, content, errors).map(lambda result: Message("tool", (result,)))


def _no_neighbours(messages: list[Message]) -> tuple[Message, ...]:
    """A model does not speak twice in a row."""
    kept = messages[:1]
    for message in messages[1:]:
        if not (message.role == kept[-1].role == "assistant"):
            kept.append(message)
    return tuple(kept)


def model_calls(dialect: str) -> st.SearchStrategy[ModelCall]:
    roles = heard("user") | heard("system") | assistants(dialect) | results(dialect)
    limits = st.integers(1, 10**6) if dialect == "messages" else st.none() | st.integers(1, 10**6)
    fractions = st.none() | st.floats(0, 1)
    schema = json_objects.map(lambda value: {**value, "type": "object"})
    return st.builds(
        ModelCall,
        model=said,
        messages=st.lists(roles, max_size=6).map(_no_neighbours),
        tools=st.lists(st.builds(ToolSpec, names, texts, schema), max_size=2).map(tuple),
        sampling=st.builds(
            Sampling,
            temperature=fractions,
            top_p=fractions,
            max_tokens=limits,
            seed=st.none() | st.integers(0, 2**53),
            stop=st.lists(said, max_size=2).map(tuple),
        ),
        stream=st.booleans(),
        dialect=st.just(dialect),
        return_tokens=st.booleans() if dialect == "chat" else st.just(False),
        extra=st.dictionaries(names.map("x_".__add__), json_values, max_size=3),
    )


def _merged(parts: list) -> tuple:
    """A model's text is one part until something else comes between."""
    kept: list = []
    for part in parts:
        if not kept or isinstance(part, ToolCall) or type(kept[-1]) is not type(part):
            kept.append(part)
    return tuple(kept)


def _floats32(values: list[float]) -> np.ndarray:
    return np.array(values, "f4")


@st.composite
def call_tokens(draw: st.DrawFn) -> CallTokens:
    ids = st.lists(st.integers(0, 2**31 - 1), max_size=5)
    completion = draw(ids)
    logprobs = draw(st.lists(st.floats(-50, 0, width=32), min_size=len(completion), max_size=len(completion)))
    shape = draw(st.tuples(st.integers(0, 3), st.integers(1, 2), st.integers(1, 2)))
    rows = np.arange(np.prod(shape), dtype=draw(st.sampled_from(["u1", "<u2"]))).reshape(shape)
    routing = draw(st.none() | st.builds(Routing, st.integers(0, 9), st.just(rows)))
    return CallTokens(np.array(draw(ids), "i4"), np.array(completion, "i4"), _floats32(logprobs), routing)


def model_replies(dialect: str) -> st.SearchStrategy[ModelReply]:
    if dialect == "chat":
        text = st.lists(st.builds(Text, said), max_size=1)
        pieces = st.tuples(st.lists(reasonings(dialect), max_size=1), text, st.lists(calls, max_size=3))
        parts = pieces.map(lambda kinds: tuple(chain(*kinds)))
    else:
        parts = st.lists(st.builds(Text, said) | reasonings(dialect) | calls, max_size=5).map(_merged)
    replies = st.builds(
        ModelReply,
        message=parts.map(lambda parts: Message("assistant", parts)),
        finish=st.sampled_from(Finish),
        usage=st.builds(Usage, st.integers(0, 10**9), st.integers(0, 10**9)),
        tokens=st.none() | call_tokens() if dialect == "chat" else st.none(),
        policy_version=st.integers(0, 10**6),
        model=said,
    )
    return replies.map(_derived_finish) if dialect == "responses" else replies


def _derived_finish(reply: ModelReply) -> ModelReply:
    if reply.finish in (Finish.LENGTH, Finish.REFUSAL):
        return reply
    return msgspec.structs.replace(reply, finish=Finish.TOOL_CALLS if reply.message.tool_calls else Finish.STOP)


def asking(reply: ModelReply) -> ModelCall:
    """A call that wants all that `reply` holds."""
    options = {"stream_options": {"include_usage": True}}
    return ModelCall(reply.model, (), stream=True, return_tokens=True, extra=options)


def spoken(dialect: str, events, call: ModelCall) -> bytes:
    """A whole stream."""
    writer = DIALECTS[dialect].stream_writer(call)
    return writer.open() + b"".join([writer.write(event) for event in events])


def stream_of(dialect: str, reply: ModelReply) -> bytes:
    return spoken(dialect, events_of(reply), asking(reply))


def plain(reply: ModelReply) -> tuple:
    """A reply as something that compares by value; arrays do not."""
    tokens = reply.tokens
    columns: tuple = ()
    if tokens is not None:
        columns = (tokens.prompt_ids.tolist(), tokens.completion_ids.tolist(), tokens.logprobs.tobytes())
        if tokens.routing is not None:
            rows = tokens.routing.rows
            columns += (tokens.routing.start, rows.dtype.str, rows.shape, rows.tobytes())
    return msgspec.structs.replace(reply, tokens=None), tokens is None, columns


def read_cut(name: str, body: bytes, cuts: list[int]) -> list:
    """The events of a stream that arrives in pieces."""
    reader = DIALECTS[name].stream_reader()
    borders = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    events = [event for a, b in pairwise(borders) for event in reader.feed(body[a:b])]
    reader.close()
    return events
