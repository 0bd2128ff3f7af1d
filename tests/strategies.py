"""Random things of the wire, for hypothesis."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from rollwright.wire import (
    CallRecord,
    Failure,
    Finish,
    Image,
    Layer,
    Message,
    Node,
    Reasoning,
    Routing,
    Score,
    Stop,
    Text,
    Timing,
    TokenSegment,
    ToolCall,
    ToolResult,
    ToolSpec,
    Trace,
    Usage,
)

words = st.text(max_size=30)
finite = st.floats(allow_nan=False, allow_infinity=False)

parts = st.one_of(
    st.builds(Text, words),
    st.builds(Reasoning, words, words),
    st.builds(Image, st.text("0123456789abcdef", min_size=64, max_size=64), st.just("image/png")),
    st.builds(ToolCall, words, words, words),
    st.builds(ToolResult, words, st.tuples(st.builds(Text, words)), st.booleans()),
)
messages = st.builds(
    Message, st.sampled_from(["system", "user", "assistant", "tool"]), st.lists(parts, max_size=3).map(tuple)
)
usages = st.builds(Usage, st.integers(0, 2**40), st.integers(0, 2**40))
failures = st.builds(Failure, st.sampled_from(Layer), words, words, words)


@st.composite
def arrays(draw, dtype, shape):
    count = int(np.prod(shape))
    raw = draw(st.binary(min_size=count * np.dtype(dtype).itemsize, max_size=count * np.dtype(dtype).itemsize))
    values = np.frombuffer(raw, dtype).reshape(shape)
    return (values != 0) if dtype == "?" else values


@st.composite
def routings(draw):
    shape = (draw(st.integers(0, 4)), draw(st.integers(0, 3)), draw(st.integers(0, 3)))
    rows = draw(st.sampled_from(["u1", "<u2"]).flatmap(lambda dtype: arrays(dtype, shape)))
    return Routing(draw(st.integers(0, 100)), rows)


@st.composite
def segments(draw):
    length = draw(st.integers(0, 6))
    ids, mask, logprobs = (draw(arrays(dtype, (length,))) for dtype in ("<i4", "u1", "<f4"))
    return TokenSegment(-1, ids, mask > 127, logprobs, draw(st.none() | routings()))


calls = st.builds(
    CallRecord,
    prompt=st.integers(-1, 5),
    reply=st.integers(-1, 5),
    model=words,
    finish=st.none() | st.sampled_from(Finish),
    usage=usages,
    policy_version=st.integers(0, 9),
    started_s=finite,
    ended_s=finite,
    tokens=st.none() | segments(),
    failure=st.none() | failures,
)
specs = st.builds(ToolSpec, words, words, st.dictionaries(words, st.integers(-(2**63), 2**64 - 1) | words, max_size=2))
traces = st.builds(
    Trace,
    task_id=words,
    attempt=st.integers(0, 9),
    nodes=st.lists(st.builds(Node, st.just(-1), messages, st.integers(-1, 3)), max_size=4).map(tuple),
    calls=st.lists(calls, max_size=3).map(tuple),
    tools=st.lists(specs, max_size=2).map(tuple),
    stop=st.sampled_from(Stop),
    scores=st.dictionaries(words, st.builds(Score, finite, finite), max_size=3),
    reward=finite,
    failure=st.none() | failures,
    trainable=st.booleans(),
    timing=st.builds(Timing, finite, finite),
    runtime=words,
    info=st.dictionaries(words, st.none() | st.booleans() | words | finite, max_size=2),
)


def same(left, right) -> bool:
    """Equal down to the bits of their arrays. Structs with arrays have no `==`, on purpose."""
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if type(left) is not type(right):
        return False
    if hasattr(left, "__struct_fields__"):
        return all(same(getattr(left, name), getattr(right, name)) for name in left.__struct_fields__)
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right
