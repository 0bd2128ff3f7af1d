"""JSON in and out, with WireError as the only failure.

Reading is msgspec: a wrong type anywhere is told with its path. Writing is orjson, which also embeds raw JSON
(`Fragment`) and numpy arrays. Whole numbers keep all their digits both ways, up to the 4,300 that Python reads."""

from __future__ import annotations

import time
from typing import Any, TypeVar
from uuid import uuid4

import msgspec
import orjson

from rollwright.wire import WireError

T = TypeVar("T")

_ANYTHING = msgspec.json.Decoder()
_LARGEST, _SMALLEST = 2**64 - 1, -(2**63)
"""The whole numbers that orjson writes."""


def dumps(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        if "64-bit" in str(error):
            return _dumps_long(value)
        # Lone surrogates and nesting over 254 levels have no JSON that peers agree on.
        raise WireError(f"this cannot be written as JSON: {error}") from error


def _dumps_long(value: Any) -> bytes:
    """As `dumps`, where some whole number is too long for orjson. That is rare, so only here the value is walked."""
    try:
        return orjson.dumps(_spelled(value), option=orjson.OPT_SERIALIZE_NUMPY)
    except (TypeError, ValueError, RecursionError) as error:
        raise WireError(f"this cannot be written as JSON: {error}") from error


def _spelled(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _spelled(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(inner) for inner in value]
    if isinstance(value, int) and not _SMALLEST <= value <= _LARGEST:
        return orjson.Fragment(str(value).encode())
    return value


def string(text: str) -> bytes:
    """A JSON string, for the hot paths of streams."""
    try:
        return orjson.dumps(text)
    except TypeError as error:
        raise WireError(f"this text cannot be written as JSON: {error}") from error


def read(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw, what: str) -> T:
    """`body` as the decoder's type; `what` begins the sentence that a peer reads if it is not."""
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WireError(f"{what} does not parse: {error}") from error


def loads(text: bytes | msgspec.Raw, what: str) -> Any:
    return read(_ANYTHING, text, what)


def raw_text(raw: msgspec.Raw, what: str) -> str:
    """The source text of a value, byte for byte."""
    try:
        return str(memoryview(raw), "utf-8")
    except UnicodeDecodeError as error:
        raise WireError(f"{what} is not UTF-8: {error}") from error


def json_object(text: str) -> bool:
    """Whether `text` is a JSON object that every reader of ours accepts."""
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def new_id(prefix: str) -> str:
    return f"{prefix}{uuid4().hex[:24]}"


def now_s() -> int:
    """Unix time, for the `created` fields that nobody computes with."""
    return int(time.time())
