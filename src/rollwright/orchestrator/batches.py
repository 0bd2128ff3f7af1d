"""A step's worth of samples, and the bytes they become. No files here, only buffers: see transports/.

The format, version 2. Integers are little-endian; `align` rounds up to 64.

    byte          what
    0..7          magic: 89 52 57 42 0D 0A 1A 0A ("\\x89RWB\\r\\n\\x1a\\n": a copy in text mode breaks it at once)
    8..11         u32, format version: 2
    12..15        u32, H: length of the header
    16..23        u64, length of the whole batch in bytes
    24..27        u32, CRC-32 of bytes 0..23 followed by the header
    28..31        zero
    32..32+H-1    header, msgpack: the map {"frames": [[offset, length], ...], "columns": {...}, "note": bytes}
    ...           zeros up to D = align(32 + H)
    D + offset    the bytes of each frame. Offsets count from D; frame 0 has offset 0, frame i + 1 has
                  align(offset + length) of frame i, with zeros between. The batch ends with the last frame's last byte.

"note" is whatever the writer wants to find again, and empty in a batch for a trainer. "columns" names every array by
[dtype, shape, frame] (the references of wire.codec; dtypes "i4" "f4" "b1" "u1" "u2" "i8" "f8"). With S samples,
T tokens, P spans (one per call along a branch):

    step, policy_version  int          number of the batch from 1; the newest version that sampled any of it
    task_ids, sources     [str]        each task, and each source of tasks, once
    offsets               i8 [S + 1]   tokens of sample s are offsets[s]..offsets[s + 1] of the three columns below
    ids, mask, logprobs   i4, b1, f4 [T]
    advantages, rewards   f8 [S]
    tasks, origins        i4 [S]       index into task_ids, and into sources
    groups                i8 [S]       number of the group in the run, from 0; -1 where it has none
    attempts, branches    i8 [S]
    ranks, micros         i4 [S]       the trainer's rank and the micro-batch on it, from 0; both -1 where not packed
    span_offsets          i8 [S + 1]   spans of sample s in the two columns below
    span_lengths          i8 [P]       tokens; those of a sample add up to its length
    span_versions         i8 [P]       policy version of the span
    routed                [map]        one per shape and type of routed experts, usually none or one:
        samples           i4 [M]       ascending; the samples whose tokens have a row here
        rows              u1 or u2 [R, layers, top_k], R being the tokens of these samples, one after another
        hole              b1 [R]       true where nobody delivered the row

This is 9 bytes per token plus some 90 per sample. The CRC covers the header and no array: arrays are guarded by the
exact lengths, and a reader that maps a batch of gigabytes must not have to read it all first.

A batch whose tokens are not at hand yet is made by `reserve_batch`: it gives the length, the bytes that are known with
their places, and the places of each sample's columns. Whoever writes the known bytes into a file of that length, which
is zero elsewhere, has a valid batch whose tokens, masks, logprobs and rows are all zero, and `decode_batch` of a
writable map of it gives samples whose arrays are these places.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import msgspec

from rollwright.wire import WireError
from rollwright.wire.codec import MAX_HEADER_BYTES, Buffer, decode

from . import layout
from .columns import Columns, samples_in
from .layout import CHECK, FIXED, MAGIC, PRELUDE_BYTES, VERSION, Header, Layout, Place, SampleShape
from .samples import Sample


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

    def micro_batches(self, rank: int) -> list[tuple[Sample, ...]]:
        """What `rank` trains, micro-batch by micro-batch. Every rank gets equally many; some may be empty."""
        micros: list[list[Sample]] = [[] for _ in range(1 + max((sample.micro for sample in self.samples), default=-1))]
        for sample in self.samples:
            if sample.rank == rank:
                micros[sample.micro].append(sample)
        return [tuple(micro) for micro in micros]


class Reserved(msgspec.Struct, frozen=True, eq=False):
    """A batch that is laid out and not filled. Offsets count from its first byte."""

    length: int
    pieces: list[tuple[int, Buffer]]
    """All that is known, each with its offset."""
    places: list[Place]
    """Where the columns of each sample go."""


def reserve_batch(
    shapes: Sequence[SampleShape], *, step: int = 0, policy_version: int = 0, note: bytes = b""
) -> Reserved:
    """Room for samples whose tokens are still to come. Step 0 is no trainer's: files of groups have it."""
    plan = Layout(step, policy_version, shapes, note)
    return Reserved(plan.length, plan.pieces(), plan.places())


def encode_batch(batch: Batch, note: bytes = b"") -> list[Buffer]:
    """The batch as buffers to be written one after another. They refer to the samples' memory, which is not copied."""
    plan = Layout(batch.step, batch.policy_version, batch.samples, note)
    buffers: list[Buffer] = []
    position = 0
    for offset, piece in plan.pieces():
        if offset > position:
            buffers.append(bytes(offset - position))
        buffers.append(piece)
        position = offset + len(piece)
    # The last column may be an empty one, which has a place and no bytes.
    if position < plan.length:
        buffers.append(bytes(plan.length - position))
    return buffers


def decode_batch(buffer: Buffer) -> Batch:
    """The batch in `buffer`, as views of it. WireError for anything that `encode_batch` does not make."""
    view = memoryview(buffer)
    header, data = _split(view)
    expected = 0
    for offset, length in header.frames:
        if offset != expected or length < 0 or offset + length > len(data):
            raise WireError(f"a frame of {length} bytes at {offset} does not fit a batch of {len(view)} bytes")
        expected = layout.align(offset + length)
    frames = [data[offset : offset + length] for offset, length in header.frames]
    if not frames or sum(header.frames[-1]) != len(data):
        raise WireError(f"the frames do not fill a batch of {len(view)} bytes")
    columns = decode([bytes(header.columns), *frames], Columns)
    return Batch(columns.step, columns.policy_version, samples_in(columns))


def sealed(batch: Batch) -> Batch:
    """The same batch, whose arrays refuse to be written to. Their memory may still be writable, for who insists."""
    for sample in batch.samples:
        for array in (sample.ids, sample.mask, sample.logprobs, sample.span_lengths, sample.span_versions):
            array.flags.writeable = False
        if sample.routed is not None and sample.routed_hole is not None:
            sample.routed.flags.writeable = sample.routed_hole.flags.writeable = False
    return batch


def note_of(buffer: Buffer) -> bytes:
    """What the writer of the batch in `buffer` noted."""
    return _split(memoryview(buffer))[0].note


def length_of(prelude: Buffer) -> int:
    """The length of the batch that begins with these bytes."""
    if len(prelude) < PRELUDE_BYTES or prelude[: len(MAGIC)] != MAGIC:
        raise WireError("not a batch: its first bytes are not those of one")
    length: int = FIXED.unpack_from(prelude)[3]
    return length


def _split(view: memoryview) -> tuple[Header, memoryview]:
    length = length_of(view)
    _, version, header_bytes, _ = FIXED.unpack_from(view)
    checksum, zero = CHECK.unpack_from(view, FIXED.size)
    if version != VERSION:
        raise WireError(f"a batch of format version {version}; this reader knows version {VERSION}")
    data_start = layout.align(PRELUDE_BYTES + header_bytes)
    if length != len(view) or data_start > length or header_bytes > MAX_HEADER_BYTES:
        raise WireError(f"a batch of {length} bytes with a header of {header_bytes} came as {len(view)} bytes")
    raw = view[PRELUDE_BYTES : PRELUDE_BYTES + header_bytes]
    if zero or checksum != _crc(view[: FIXED.size], raw):
        raise WireError("the header of a batch does not match its checksum")
    return decode([raw], Header), view[data_start:]


def _crc(fixed: Buffer, header: Buffer) -> int:
    return zlib.crc32(header, zlib.crc32(fixed))
