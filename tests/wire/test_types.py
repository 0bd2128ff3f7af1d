"""Errors travel, arrays are checked, traces read well."""

import inspect
import pickle

import numpy as np
import pytest

from rollwright.wire import (
    CallRecord,
    CallTokens,
    Failure,
    Layer,
    Node,
    Routing,
    TokenSegment,
    Trace,
    Usage,
    WireError,
    assistant,
    errors,
    system,
    user,
)

TREE = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, Exception)]


@pytest.mark.parametrize("kind", TREE)
def test_every_error_pickles(kind):
    error = pickle.loads(pickle.dumps(kind("why")))
    assert type(error) is kind
    assert str(error) == "why"


def test_every_rollout_error_has_one_layer():
    layers = {kind.layer for kind in TREE if issubclass(kind, errors.RolloutError)}
    assert layers == set(Layer)


def test_a_failure_keeps_what_happened():
    try:
        raise errors.RuntimeLost("box 7 is gone")
    except errors.RuntimeLost as error:
        failure = Failure.of(error)
    assert (failure.layer, failure.kind, failure.message) == (Layer.RUNTIME, "RuntimeLost", "box 7 is gone")
    assert "test_a_failure_keeps" in failure.trail


@pytest.mark.parametrize(
    "make",
    [
        lambda: CallTokens(np.zeros(2, np.int64), np.zeros(1, np.int32), np.zeros(1, np.float32)),
        lambda: CallTokens(np.zeros(2, np.int32), np.zeros(1, np.int32), np.zeros(2, np.float32)),
        lambda: CallTokens(np.zeros((2, 2), np.int32), np.zeros(1, np.int32), np.zeros(1, np.float32)),
        lambda: TokenSegment(-1, np.zeros(2, np.int32), np.zeros(1, np.bool_), np.zeros(2, np.float32)),
        lambda: Routing(0, np.zeros((2, 2), np.uint8)),
        lambda: Routing(-1, np.zeros((2, 2, 2), np.uint8)),
        lambda: Routing(0, np.zeros((2, 2, 2), np.int32)),
    ],
)
def test_columns_that_do_not_fit_are_refused(make):
    with pytest.raises(WireError):
        make()


def test_a_trace_reads_as_its_last_conversation():
    nodes = (Node(-1, system("s")), Node(0, user("u")), Node(1, assistant("a"), 0), Node(1, assistant("b"), 1))
    calls = (CallRecord(1, 2, usage=Usage(3, 1)), CallRecord(1, 3, usage=Usage(3, 2)), CallRecord(3))
    trace = Trace("t", 0, nodes, calls)
    assert [message.text for message in trace.messages] == ["s", "u", "b"]
    assert (trace.reply, trace.turns, trace.usage, trace.leaves) == ("b", 2, Usage(6, 3), (2, 3))
