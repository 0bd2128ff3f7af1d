"""Structs with arrays, as one small header and raw frames.

A message is a list of frames. Frame 0 is a msgpack header in which every array is replaced by a reference (type, shape,
frame number); each later frame is the memory of one array. Encoding takes views, never copies; decoding gives views of
the frames that came in. Anything that is not such a message is a WireError, and no array is made before the frame that
holds its bytes was seen, so nothing is allocated that the input did not pay for.

The same references are used in JSON (for files that people read), where the frames lie in a file beside it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar, get_origin

import msgspec
import numpy as np
import orjson

from .arrays import DTYPES, NAMES, AnyArray
from .errors import WireError

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")

MAX_HEADER_BYTES = 256 * 2**20
MAX_NDIM = 4


class ArrayRef(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Where an array is: `frame` counts from 0 after the header."""

    dtype: str
    shape: tuple[int, ...]
    frame: int


def encode(value: Any) -> list[Buffer]:
    """`value` as frames. The arrays' memory is referenced, so do not write to it until the frames were sent."""
    frames: list[Buffer] = [b""]
    frames[0] = _guarded(lambda: msgspec.msgpack.encode(value, enc_hook=_collector(frames, header_frames=1)))
    return frames


def decode(frames: Sequence[Buffer], type: type[T]) -> T:
    """The value in `frames`. Its arrays are views of the frames, read-only where the frames are."""
    if not frames:
        raise WireError("a message needs at least one frame")
    prepare(type)
    if len(frames[0]) > MAX_HEADER_BYTES:
        raise WireError(f"a header of {len(frames[0])} bytes is over the limit of {MAX_HEADER_BYTES}")
    resolve = _resolver(frames[1:])
    return _guarded(lambda: msgspec.msgpack.decode(frames[0], type=type, dec_hook=resolve))


def encode_json(value: Any) -> tuple[bytes, list[Buffer]]:
    """`value` as JSON text, and the frames it refers to."""
    frames: list[Buffer] = []
    plain = _guarded(lambda: msgspec.to_builtins(value, enc_hook=_collector(frames, header_frames=0)))
    try:
        text = orjson.dumps(plain)
    except orjson.JSONEncodeError:
        # It refuses integers over 64 bits and a depth over 254, which the JSON schema of a tool may have.
        text = _guarded(lambda: msgspec.json.encode(plain))
    return text, frames


def decode_json(text: Buffer | str, frames: Sequence[Buffer], type: type[T]) -> T:
    prepare(type)
    resolve = _resolver(frames)
    return _guarded(lambda: msgspec.json.decode(text, type=type, dec_hook=resolve))


def prepare(type: Any) -> None:
    """Let msgspec learn a type. It does so at the first use, and crashes (0.22) when two threads are the first at once;
    so whoever decodes in threads without this module calls it at import."""
    if type not in _prepared:
        with _preparing:
            msgspec.msgpack.Decoder(type, dec_hook=_resolver(()))
            _prepared.add(type)


_prepared: set[Any] = set()
_preparing = threading.Lock()


def raw_bytes(array: AnyArray) -> memoryview:
    """The memory of a contiguous array, without a copy."""
    if not array.flags.c_contiguous:
        raise WireError("only contiguous arrays go on the wire; use wire.arrays.column")
    # A memoryview of an empty array cannot be cast, and there is nothing in it to send.
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def view_of(ref: ArrayRef, buffer: Buffer) -> AnyArray:
    """The array that `ref` describes, as a view of `buffer`."""
    dtype = DTYPES.get(ref.dtype)
    if dtype is None or len(ref.shape) > MAX_NDIM or any(axis < 0 for axis in ref.shape):
        raise WireError(f"an array of type {ref.dtype!r} and shape {ref.shape} is not one of ours")
    if prod(ref.shape) * dtype.itemsize != len(memoryview(buffer).cast("B") if len(buffer) else b""):
        raise WireError(f"an array of shape {ref.shape} and type {ref.dtype} does not fill {len(buffer)} bytes")
    return np.frombuffer(buffer, dtype=dtype).reshape(ref.shape)


def _collector(frames: list[Buffer], header_frames: int) -> Callable[[Any], Any]:
    def collect(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            raise WireError(f"{type(value).__name__} does not go on the wire")
        name = NAMES.get(value.dtype)
        if name is None:
            raise WireError(f"arrays of {value.dtype} do not go on the wire")
        frames.append(raw_bytes(value))
        return ArrayRef(name, value.shape, len(frames) - 1 - header_frames)

    return collect


def _resolver(frames: Sequence[Buffer]) -> Callable[[Any, Any], Any]:
    def resolve(kind: Any, value: Any) -> Any:
        if get_origin(kind) is not np.ndarray and kind is not np.ndarray:
            raise WireError(f"{kind} does not come off the wire")
        ref = msgspec.convert(value, ArrayRef)
        if not 0 <= ref.frame < len(frames):
            raise WireError(f"frame {ref.frame} is not among the {len(frames)} that came")
        return view_of(ref, frames[ref.frame])

    return resolve


def _guarded(convert: Callable[[], T]) -> T:
    try:
        return convert()
    except WireError:
        raise
    except (msgspec.DecodeError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise WireError(f"not a message of ours: {error}") from error


prepare(ArrayRef)
