"""A step's worth of samples, and the bytes they become. No files here, only buffers: see transports/.

The format, version 1. Integers are little-endian; `align` rounds up to 64.

    byte          what
    0..7          magic: 89 52 57 42 0D 0A 1A 0A ("\\x89RWB\\r\\n\\x1a\\n": a copy in text mode breaks it at once)
    8..11         u32, format version: 1
    12..15        u32, H: length of the header
    16..23        u64, length of the whole batch in bytes
    24..27        u32, CRC-32 of bytes 0..23 followed by the header
    28..31        zero
    32..32+H-1    header, msgpack: the map {"frames": [[offset, length], ...], "columns": {...}}
    ...           zeros up to D = align(32 + H)
    D + offset    the bytes of each frame. Offsets count from D; frame 0 has offset 0, frame i + 1 has
                  align(offset + length) of frame i, with zeros between. The batch ends with the last frame's last byte.

"columns" names every array by [dtype, shape, frame] (the references of wire.codec; dtypes "i4" "f4" "b1" "u1" "u2"
"i8" "f8"). With S samples, T tokens, P spans (one per call along a branch):

    step, policy_version  int          number of the batch from 1; the newest version that sampled any of it
    task_ids              [str]        each task once
    offsets               i8 [S + 1]   tokens of sample s are offsets[s]..offsets[s + 1] of the three columns below
    ids, mask, logprobs   i4, b1, f4 [T]
    advantages, rewards   f8 [S]
    tasks                 i4 [S]       index into task_ids
    attempts, branches    i8 [S]
    span_offsets          i8 [S + 1]   spans of sample s in the two columns below
    span_lengths          i8 [P]       tokens; those of a sample add up to its length
    span_versions         i8 [P]       policy version of the span
    routed                [map]        one per shape and type of routed experts, usually none or one:
        samples           i4 [M]       ascending; the samples whose tokens have a row here
        rows              u1 or u2 [R, layers, top_k], R being the tokens of these samples, one after another
        hole              b1 [R]       true where nobody delivered the row

This is 9 bytes per token plus some 70 per sample. The CRC covers the header and no array: arrays are guarded by the
exact lengths, and a reader that maps a batch of gigabytes must not have to read it all first.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from rollwright.wire import WireError
from rollwright.wire.arrays import NAMES, AnyArray
from rollwright.wire.codec import MAX_HEADER_BYTES, ArrayRef, Buffer, decode, raw_bytes

from .columns import Columns, samples_in
from .samples import Sample

MAGIC = b"\x89RWB\r\n\x1a\n"
VERSION = 1
ALIGNMENT = 64
_FIXED = struct.Struct("<8sIIQ")
_CHECK = struct.Struct("<II")
PRELUDE_BYTES = _FIXED.size + _CHECK.size


class Batch(msgspec.Struct, frozen=True, eq=False):
    step: int
    """Counts from 1."""
    policy_version: int
    """The newest version that sampled any of it."""
    samples: tuple[Sample, ...]

    @classmethod
    def of(cls, step: int, samples: Iterable[Sample]) -> Batch:
        samples = tuple(samples)
        newest = max((int(sample.span_versions.max(initial=0)) for sample in samples), default=0)
        return cls(step, newest, samples)

    @property
    def tokens(self) -> int:
        return sum(len(sample.ids) for sample in self.samples)


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    frames: tuple[tuple[int, int], ...]
    columns: msgspec.Raw


class _Frames:
    """Columns that are to be written. A column is a list of arrays that follow one another in the file, so samples go
    from their own memory to the disk and are never joined in ours."""

    def __init__(self) -> None:
        self.columns: list[list[memoryview]] = []

    def add(self, arrays: Sequence[AnyArray], like: AnyArray) -> ArrayRef:
        self.columns.append([raw_bytes(array) for array in arrays])
        shape = (sum(len(array) for array in arrays), *like.shape[1:])
        return ArrayRef(NAMES[like.dtype], shape, len(self.columns) - 1)

    def add_values(self, values: Iterable[float], dtype: str) -> ArrayRef:
        array = np.asarray(list(values), dtype)
        return self.add([array], array)

    def table(self) -> tuple[tuple[int, int], ...]:
        table: list[tuple[int, int]] = []
        for chunks in self.columns:
            offset = _align(sum(table[-1])) if table else 0
            table.append((offset, sum(len(chunk) for chunk in chunks)))
        return tuple(table)


def encode_batch(batch: Batch) -> list[Buffer]:
    """The batch as buffers to be written one after another. They refer to the samples' memory, which is not copied."""
    frames = _Frames()
    columns = msgspec.msgpack.encode(_columns(batch, frames))
    table = frames.table()
    header = msgspec.msgpack.encode(_Header(table, msgspec.Raw(columns)))
    data_start = _align(PRELUDE_BYTES + len(header))
    fixed = _FIXED.pack(MAGIC, VERSION, len(header), data_start + sum(table[-1]))
    check = _CHECK.pack(zlib.crc32(header, zlib.crc32(fixed)), 0)
    buffers: list[Buffer] = [fixed, check, header, bytes(data_start - PRELUDE_BYTES - len(header))]
    position = 0
    for (offset, length), chunks in zip(table, frames.columns, strict=True):
        buffers += [bytes(offset - position), *chunks]
        position = offset + length
    return [buffer for buffer in buffers if len(buffer)]


def decode_batch(buffer: Buffer) -> Batch:
    """The batch in `buffer`, as views of it. WireError for anything that `encode_batch` does not make."""
    view = memoryview(buffer)
    header, data = _split(view)
    expected = 0
    for offset, length in header.frames:
        if offset != expected or length < 0 or offset + length > len(data):
            raise WireError(f"a frame of {length} bytes at {offset} does not fit a batch of {len(view)} bytes")
        expected = _align(offset + length)
    frames = [data[offset : offset + length] for offset, length in header.frames]
    if not frames or sum(header.frames[-1]) != len(data):
        raise WireError(f"the frames do not fill a batch of {len(view)} bytes")
    columns = decode([bytes(header.columns), *frames], Columns)
    return Batch(columns.step, columns.policy_version, samples_in(columns))


def _split(view: memoryview) -> tuple[_Header, memoryview]:
    if len(view) < PRELUDE_BYTES or view[: len(MAGIC)] != MAGIC:
        raise WireError("not a batch: its first bytes are not those of one")
    _, version, header_bytes, length = _FIXED.unpack_from(view)
    checksum, zero = _CHECK.unpack_from(view, _FIXED.size)
    if version != VERSION:
        raise WireError(f"a batch of format version {version}; this reader knows version {VERSION}")
    data_start = _align(PRELUDE_BYTES + header_bytes)
    if length != len(view) or data_start > length or header_bytes > MAX_HEADER_BYTES:
        raise WireError(f"a batch of {length} bytes with a header of {header_bytes} came as {len(view)} bytes")
    raw = view[PRELUDE_BYTES : PRELUDE_BYTES + header_bytes]
    if zero or checksum != zlib.crc32(raw, zlib.crc32(view[: _FIXED.size])):
        raise WireError("the header of a batch does not match its checksum")
    return decode([raw], _Header), view[data_start:]


def _columns(batch: Batch, frames: _Frames) -> dict[str, object]:
    samples = batch.samples
    tasks = {task_id: index for index, task_id in enumerate(dict.fromkeys(sample.task_id for sample in samples))}
    empty = {name: np.empty(0, name) for name in ("i4", "?", "f4", "i8")}
    return {
        "step": batch.step,
        "policy_version": batch.policy_version,
        "task_ids": list(tasks),
        "offsets": _offsets(frames, [len(sample.ids) for sample in samples]),
        "ids": frames.add([sample.ids for sample in samples], empty["i4"]),
        "mask": frames.add([sample.mask for sample in samples], empty["?"]),
        "logprobs": frames.add([sample.logprobs for sample in samples], empty["f4"]),
        "advantages": frames.add_values((sample.advantage for sample in samples), "f8"),
        "rewards": frames.add_values((sample.reward for sample in samples), "f8"),
        "tasks": frames.add_values((tasks[sample.task_id] for sample in samples), "i4"),
        "attempts": frames.add_values((sample.attempt for sample in samples), "i8"),
        "branches": frames.add_values((sample.branch for sample in samples), "i8"),
        "span_offsets": _offsets(frames, [len(sample.span_lengths) for sample in samples]),
        "span_lengths": frames.add([sample.span_lengths for sample in samples], empty["i8"]),
        "span_versions": frames.add([sample.span_versions for sample in samples], empty["i8"]),
        "routed": _routed_columns(samples, frames),
    }


def _routed_columns(samples: Sequence[Sample], frames: _Frames) -> list[dict[str, ArrayRef]]:
    kinds: dict[object, list[int]] = {}
    for index, sample in enumerate(samples):
        if sample.routed is not None:
            kinds.setdefault((sample.routed.dtype, sample.routed.shape[1:]), []).append(index)
    columns = []
    for indices in kinds.values():
        rows = [routed for index in indices if (routed := samples[index].routed) is not None]
        holes = [hole for index in indices if (hole := samples[index].routed_hole) is not None]
        columns.append(
            {
                "samples": frames.add_values(indices, "i4"),
                "rows": frames.add(rows, rows[0]),
                "hole": frames.add(holes, holes[0]),
            }
        )
    return columns


def _offsets(frames: _Frames, lengths: list[int]) -> ArrayRef:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(np.asarray(lengths, np.int64), out=offsets[1:])
    return frames.add([offsets], offsets)


def _align(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT
