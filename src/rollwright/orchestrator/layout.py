"""Where each byte of a batch lies, decided before there is a byte of it. The format itself is told in batches.py.

A column is a list of chunks that follow one another: memory that somebody else holds, or a gap of so many bytes that
somebody will fill. So samples go from their own memory to a file and are never joined in ours, and a file can be laid
out before the tokens that it is for are at hand.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from rollwright.wire.arrays import DTYPES, NAMES, Ints
from rollwright.wire.codec import ArrayRef, Buffer, raw_bytes

from .samples import Sample

MAGIC = b"\x89RWB\r\n\x1a\n"
VERSION = 2
ALIGNMENT = 64
FIXED = struct.Struct("<8sIIQ")
CHECK = struct.Struct("<II")
PRELUDE_BYTES = FIXED.size + CHECK.size

Chunk = Buffer | int
"""Memory, or the length of a gap."""


class SampleShape(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """All of a sample but the columns of its tokens."""

    task_id: str
    attempt: int
    branch: int
    reward: float
    advantage: float = 0.0
    group: int = -1
    source: str = ""
    rank: int = -1
    micro: int = -1
    span_lengths: Ints
    span_versions: Ints
    routed: tuple[str, int, int] | None = None
    """Type ("u1" or "u2"), layers and top_k of its routed experts."""


class Place(NamedTuple):
    """Where the columns of one sample lie, in bytes from the beginning; -1 where it has none."""

    ids: int
    mask: int
    logprobs: int
    routed: int = -1
    routed_hole: int = -1


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    frames: tuple[tuple[int, int], ...]
    columns: msgspec.Raw
    note: bytes = b""


class Layout:
    """The columns of a batch with their places. `items` are samples, or shapes of samples that are not there yet."""

    def __init__(self, step: int, policy_version: int, items: Sequence[Sample | SampleShape], note: bytes) -> None:
        self._items = items
        self._frames: list[list[Chunk]] = []
        self._kinds = _kinds(items)
        task_ids, tasks = _once(item.task_id for item in items)
        sources, origins = _once(item.source for item in items)
        self._refs = self._columns(tasks, origins)
        self._routed = [self._routed_column(kind, indices) for kind, indices in self._kinds.items()]
        self.table = self._table()
        told = {"step": step, "policy_version": policy_version, "task_ids": task_ids, "sources": sources}
        columns = msgspec.msgpack.encode(told | self._refs | {"routed": self._routed})
        header = msgspec.msgpack.encode(Header(self.table, msgspec.Raw(columns), note))
        self.start = align(PRELUDE_BYTES + len(header))
        self.length = self.start + sum(self.table[-1])
        fixed = FIXED.pack(MAGIC, VERSION, len(header), self.length)
        check = CHECK.pack(zlib.crc32(header, zlib.crc32(fixed)), 0)
        self.head = (fixed + check + header).ljust(self.start, b"\0")

    def pieces(self) -> list[tuple[int, Buffer]]:
        """All memory with its place, in order; gaps and the zeros between frames are left out."""
        pieces: list[tuple[int, Buffer]] = [(0, self.head)]
        for (offset, _), chunks in zip(self.table, self._frames, strict=True):
            position = self.start + offset
            for chunk in chunks:
                if not isinstance(chunk, int) and len(chunk):
                    pieces.append((position, chunk))
                position += _size(chunk)
        return pieces

    def places(self) -> list[Place]:
        """Of each sample."""
        ids, mask, logprobs = (self._start_of(self._refs[name]) for name in ("ids", "mask", "logprobs"))
        tokens = np.concatenate(([0], np.cumsum([tokens_of(item) for item in self._items], dtype=np.int64))).tolist()
        routed = self._routed_places()
        return [
            Place(ids + 4 * tokens[index], mask + tokens[index], logprobs + 4 * tokens[index], *routed.get(index, ()))
            for index in range(len(self._items))
        ]

    def _routed_places(self) -> dict[int, tuple[int, int]]:
        places: dict[int, tuple[int, int]] = {}
        for ((dtype, layers, top_k), indices), column in zip(self._kinds.items(), self._routed, strict=True):
            row, hole = self._start_of(column["rows"]), self._start_of(column["hole"])
            row_bytes = DTYPES[dtype].itemsize * layers * top_k
            for index in indices:
                places[index] = (row, hole)
                row += tokens_of(self._items[index]) * row_bytes
                hole += tokens_of(self._items[index])
        return places

    def _start_of(self, ref: ArrayRef) -> int:
        return self.start + self.table[ref.frame][0]

    def _table(self) -> tuple[tuple[int, int], ...]:
        table: list[tuple[int, int]] = []
        for chunks in self._frames:
            offset = align(sum(table[-1])) if table else 0
            table.append((offset, sum(map(_size, chunks))))
        return tuple(table)

    def _columns(self, tasks: list[int], origins: list[int]) -> dict[str, ArrayRef]:
        items = self._items
        return {
            "offsets": self._offsets(tokens_of(item) for item in items),
            "ids": self._tokens("ids", "i4"),
            "mask": self._tokens("mask", "b1"),
            "logprobs": self._tokens("logprobs", "f4"),
            "advantages": self._values((item.advantage for item in items), "f8"),
            "rewards": self._values((item.reward for item in items), "f8"),
            "tasks": self._values(tasks, "i4"),
            "origins": self._values(origins, "i4"),
            "groups": self._values((item.group for item in items), "i8"),
            "attempts": self._values((item.attempt for item in items), "i8"),
            "branches": self._values((item.branch for item in items), "i8"),
            "ranks": self._values((item.rank for item in items), "i4"),
            "micros": self._values((item.micro for item in items), "i4"),
            "span_offsets": self._offsets(len(item.span_lengths) for item in items),
            "span_lengths": self._spans("span_lengths"),
            "span_versions": self._spans("span_versions"),
        }

    def _routed_column(self, kind: tuple[str, int, int], indices: list[int]) -> dict[str, ArrayRef]:
        dtype, *axes = kind
        row_bytes = DTYPES[dtype].itemsize * axes[0] * axes[1]
        items = [self._items[index] for index in indices]
        rows = sum(map(tokens_of, items))
        return {
            "samples": self._values(indices, "i4"),
            "rows": self._add([_chunk(item, "routed", row_bytes) for item in items], dtype, rows, *axes),
            "hole": self._add([_chunk(item, "routed_hole", 1) for item in items], "b1", rows),
        }

    def _tokens(self, name: str, dtype: str) -> ArrayRef:
        chunks = [_chunk(item, name, DTYPES[dtype].itemsize) for item in self._items]
        return self._add(chunks, dtype, sum(map(tokens_of, self._items)))

    def _spans(self, name: str) -> ArrayRef:
        spans = [getattr(item, name) for item in self._items]
        return self._add([raw_bytes(span) for span in spans], "i8", sum(map(len, spans)))

    def _values(self, values: Iterable[float], dtype: str) -> ArrayRef:
        array = np.asarray(list(values), DTYPES[dtype])
        return self._add([raw_bytes(array)], dtype, len(array))

    def _offsets(self, lengths: Iterable[int]) -> ArrayRef:
        return self._values(np.concatenate(([0], np.cumsum(list(lengths), dtype=np.int64))).tolist(), "i8")

    def _add(self, chunks: list[Chunk], dtype: str, *shape: int) -> ArrayRef:
        self._frames.append(chunks)
        return ArrayRef(dtype, shape, len(self._frames) - 1)


def tokens_of(item: Sample | SampleShape) -> int:
    return len(item.ids) if isinstance(item, Sample) else int(item.span_lengths.sum())


def align(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


def _kinds(items: Sequence[Sample | SampleShape]) -> dict[tuple[str, int, int], list[int]]:
    """The samples that have routed experts, by the type and shape of these."""
    kinds: dict[tuple[str, int, int], list[int]] = {}
    for index, item in enumerate(items):
        kind = item.routed
        if isinstance(kind, np.ndarray):
            kind = (NAMES[kind.dtype], kind.shape[1], kind.shape[2])
        if kind is not None:
            kinds.setdefault(kind, []).append(index)
    return kinds


def _chunk(item: Sample | SampleShape, name: str, token_bytes: int) -> Chunk:
    return raw_bytes(getattr(item, name)) if isinstance(item, Sample) else tokens_of(item) * token_bytes


def _size(chunk: Chunk) -> int:
    return chunk if isinstance(chunk, int) else len(chunk)


def _once(names: Iterable[str]) -> tuple[list[str], list[int]]:
    """Each name once, and for each item the place of its name."""
    places: dict[str, int] = {}
    indices = [places.setdefault(name, len(places)) for name in names]
    return list(places), indices
