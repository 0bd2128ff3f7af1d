"""JSON in and out, with WireError as the only failure.

Reading is typed (msgspec): a wrong type anywhere is told with its path. Writing is orjson, which also embeds raw JSON
(`Fragment`) and numpy arrays. Whole numbers beyond 64 bits in fields that we do not know become floats."""

from __future__ import annotations

import time
from typing import Any, TypeVar
from uuid import uuid4

import msgspec
import orjson

from rollwright.wire import WireError

T = TypeVar("T")


def dumps(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        # Lone surrogates, nesting over 254 levels and numbers beyond 64 bits have no JSON that peers agree on.
        raise WireError(f"this cannot be written as JSON: {error}") from error


def string(text: str) -> bytes:
    """A JSON string, for the hot paths of streams."""
    try:
        return orjson.dumps(text)
    except TypeError as error:
        raise WireError(f"this text cannot be written as JSON: {error}") from error


def read(decoder: msgspec.json.Decoder[T], body: bytes, what: str) -> T:
    """`body` as the decoder's type; `what` begins the sentence that a peer reads if it is not."""
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WireError(f"{what} does not parse: {error}") from error


def loads(text: bytes | msgspec.Raw, what: str) -> Any:
    try:
        return orjson.loads(memoryview(text))
    except orjson.JSONDecodeError as error:
        raise WireError(f"{what} does not parse: {error}") from error


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
