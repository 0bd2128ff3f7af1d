"""What the scripted engine remembers of its calls, for tests that compare both ends."""

from __future__ import annotations

from collections import deque
from typing import Any, get_origin

import msgspec
import numpy as np

from rollwright.wire import CallTokens, ModelCall, ModelReply
from rollwright.wire.arrays import NAMES

from .config import Fault


class CallLog(msgspec.Struct, frozen=True):
    """One request that was read."""

    number: int
    """From 0, in order of arrival."""
    dialect: str
    call: ModelCall
    fault: Fault
    reply: ModelReply | None = None
    """What was said, also where a fault kept it from arriving whole; None if nothing was sampled."""
    tokens: CallTokens | None = None
    """What was sampled, in token mode, also where the call did not ask for it."""


class Stats(msgspec.Struct):
    """Counters since the start or the last reset."""

    in_flight: int = 0
    received: int = 0
    served: int = 0
    """Answered whole."""
    refused: int = 0
    """Answered with an error of the caller's making: wrong key, path, model or body."""
    broken: int = 0
    """Calls in which the policy raised."""
    cancelled: int = 0
    """The client left before its answer."""
    faults: dict[str, int] = {}
    forgotten: int = 0
    """Token segments that fell out of the cache; conversations that need them are rendered anew."""
    cpu_s: float = 0.0
    """CPU time of the process that serves."""


class CallRing:
    """The newest calls, oldest first."""

    def __init__(self, limit: int) -> None:
        self._entries: deque[CallLog] = deque(maxlen=limit)

    def add(self, entry: CallLog) -> None:
        self._entries.append(entry)

    def entries(self) -> list[CallLog]:
        return list(self._entries)

    def clear(self) -> None:
        self._entries.clear()


def write_log(entries: list[CallLog]) -> bytes:
    """The log as JSON. Arrays are written as their type, shape and numbers."""
    return msgspec.json.encode(entries, enc_hook=_array_out)


def read_log(body: bytes) -> list[CallLog]:
    """The log that `GET /scripted/log` answers with."""
    return msgspec.json.decode(body, type=list[CallLog], dec_hook=_array_in)


def _array_out(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"dtype": NAMES[value.dtype], "shape": value.shape, "values": value.reshape(-1).tolist()}
    raise TypeError(f"{type(value).__name__} is not written to the log")


def _array_in(kind: Any, value: Any) -> Any:
    if get_origin(kind) is np.ndarray or kind is np.ndarray:
        dtypes = {name: dtype for dtype, name in NAMES.items()}
        return np.array(value["values"], dtype=dtypes[value["dtype"]]).reshape(value["shape"])
    raise TypeError(f"{kind} is not read from the log")
