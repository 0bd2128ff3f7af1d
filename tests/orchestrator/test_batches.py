"""The batch format: bit-exact, without copies, thrifty, and calm about hostile bytes."""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.call_trees import assert_same, chat, worlds
from rollwright.orchestrator import Batch, Sample, samples_of
from rollwright.orchestrator.batches import decode_batch, encode_batch, note_of, reserve_batch
from rollwright.orchestrator.layout import ALIGNMENT, PRELUDE_BYTES, SampleShape
from rollwright.wire import WireError
from rollwright.wire.codec import ArrayRef


def encoded(batch: Batch) -> bytes:
    return b"".join(encode_batch(batch))


@st.composite
def batches(draw) -> Batch:
    """Samples of different rollouts, with and without routing of either type."""
    traces = draw(st.lists(worlds(max_calls=4), max_size=4))
    samples = [sample for world in traces for sample in samples_of(world.trace)]
    advantages = [draw(st.floats(allow_nan=False)) for _ in samples]
    ranks = st.integers(-1, 3)
    samples = [
        msgspec.structs.replace(
            s, advantage=a, group=draw(st.integers(-1, 2**40)), source=draw(st.sampled_from(["", "maths", "code"]))
        )
        for s, a in zip(samples, advantages, strict=True)
    ]
    samples = [
        msgspec.structs.replace(s, rank=rank, micro=-1 if rank < 0 else draw(st.integers(0, len(samples) - 1)))
        for s, rank in [(s, draw(ranks)) for s in samples]
    ]
    return Batch.of(draw(st.integers(1, 10**9)), samples)


def routed_batch() -> Batch:
    plain = samples_of(chat(2)) + samples_of(chat(1, task_id="u", attempt=3))
    routed = np.arange(len(plain[1].ids) * 4, dtype=np.uint8).reshape(-1, 2, 2)
    holes = np.zeros(len(plain[1].ids), np.bool_)
    return Batch.of(5, [plain[0], msgspec.structs.replace(plain[1], routed=routed, routed_hole=holes)])


@given(batches())
def test_a_round_trip_is_bit_exact(batch):
    back = decode_batch(encoded(batch))
    assert (back.step, back.policy_version) == (batch.step, batch.policy_version)
    for ours, theirs in zip(batch.samples, back.samples, strict=True):
        assert_same(ours, theirs)


def test_samples_of_different_routing_share_a_batch():
    plain = [samples_of(chat(1, attempt=n))[0] for n in range(4)]
    length = len(plain[0].ids)
    shapes = [None, (np.uint8, 2, 2), (np.uint16, 2, 2), (np.uint8, 3, 1)]
    samples = [
        msgspec.structs.replace(s, routed=np.ones((length, *kind[1:]), kind[0]), routed_hole=np.ones(length, np.bool_))
        if kind
        else s
        for s, kind in zip(plain, shapes, strict=True)
    ]
    back = decode_batch(encoded(Batch.of(1, samples)))
    for ours, theirs in zip(samples, back.samples, strict=True):
        assert_same(ours, theirs)


@given(batches())
def test_frames_lie_where_the_table_says_and_aligned(batch):
    raw = encoded(batch)
    magic, version, header_bytes, length = struct.unpack_from("<8sIIQ", raw)
    assert (magic, version, length) == (b"\x89RWB\r\n\x1a\n", 2, len(raw))
    header = msgspec.msgpack.decode(raw[32 : 32 + header_bytes])
    start = -(-(32 + header_bytes) // ALIGNMENT) * ALIGNMENT
    assert all(offset % ALIGNMENT == 0 for offset, _ in header["frames"])
    dtype, shape, frame = header["columns"]["ids"]
    offset, size = header["frames"][frame]
    ids = np.frombuffer(raw[start + offset : start + offset + size], dtype).reshape(shape)
    assert ids.tolist() == [token for sample in batch.samples for token in sample.ids.tolist()]


def test_encoding_refers_to_the_samples_memory():
    batch = routed_batch()
    buffers = [np.frombuffer(buffer, np.uint8) for buffer in encode_batch(batch)]
    for sample in batch.samples:
        for name in ("ids", "mask", "logprobs", "routed"):
            array = getattr(sample, name)
            assert array is None or any(np.shares_memory(array, buffer) for buffer in buffers), name


def test_decoding_gives_views_of_the_buffer():
    raw = encoded(routed_batch())
    memory = np.frombuffer(raw, np.uint8)
    for sample in decode_batch(raw).samples:
        for name in Sample.__struct_fields__:
            array = getattr(sample, name)
            if isinstance(array, np.ndarray):
                assert np.shares_memory(array, memory), name
                assert not array.flags.owndata, name
                assert not array.flags.writeable, name


def shape_of(sample: Sample) -> SampleShape:
    routed = sample.routed
    kind = None if routed is None else (f"u{routed.dtype.itemsize}", *routed.shape[1:])
    shared = set(SampleShape.__struct_fields__) - {"routed"}
    return SampleShape(**{name: getattr(sample, name) for name in shared}, routed=kind)


@given(batches(), st.binary(max_size=9))
def test_a_reserved_batch_is_the_encoded_one_once_it_is_filled(batch, note):
    """Filled by absolute offsets, as a writer to a file does it."""
    shapes = [shape_of(sample) for sample in batch.samples]
    room = reserve_batch(shapes, step=batch.step, policy_version=batch.policy_version, note=note)
    raw = bytearray(room.length)
    for offset, piece in room.pieces:
        raw[offset : offset + len(piece)] = piece
    for sample, place in zip(batch.samples, room.places, strict=True):
        for name, offset in place._asdict().items():
            array = getattr(sample, name)
            assert (offset < 0) == (array is None)
            if array is not None:
                raw[offset : offset + array.nbytes] = array.tobytes()
    assert bytes(raw) == b"".join(encode_batch(batch, note))
    assert note_of(raw) == note


def test_a_reserved_batch_gives_writable_samples_in_their_places():
    batch = routed_batch()
    room = reserve_batch([shape_of(sample) for sample in batch.samples], step=5, policy_version=batch.policy_version)
    raw = bytearray(room.length)
    for offset, piece in room.pieces:
        raw[offset : offset + len(piece)] = piece
    for ours, theirs in zip(batch.samples, decode_batch(raw).samples, strict=True):
        for name in ("ids", "mask", "logprobs", "routed", "routed_hole"):
            if (array := getattr(ours, name)) is not None:
                getattr(theirs, name)[:] = array
    assert bytes(raw) == encoded(batch)


def test_micro_batches_are_equally_many_on_every_rank():
    plain = [samples_of(chat(1, attempt=n))[0] for n in range(4)]
    places = [(0, 0), (1, 1), (0, 0), (1, 0)]
    samples = [msgspec.structs.replace(s, rank=r, micro=m) for s, (r, m) in zip(plain, places, strict=True)]
    batch = decode_batch(encoded(Batch.of(1, samples)))
    micros = [[[s.attempt for s in micro] for micro in batch.micro_batches(rank)] for rank in (0, 1, 2)]
    assert micros == [[[0, 2], []], [[3], [1]], [[], []]]
    assert Batch.of(1, plain).micro_batches(0) == []


@pytest.mark.parametrize(("rank", "micro"), [(0, 2), (0, -1), (-1, 0), (-2, -2), (0, 2**31 - 1), (2**31 - 1, 0)])
def test_a_packing_that_no_packer_makes_is_refused(rank, micro):
    samples = [msgspec.structs.replace(sample, rank=rank, micro=micro) for sample in samples_of(chat(1))]
    with pytest.raises(WireError):
        decode_batch(encoded(Batch.of(1, samples)))


def test_a_token_costs_less_than_13_bytes():
    samples = [s for n in range(32) for s in samples_of(chat(4, attempt=n, new=30, answer=20))]
    batch = Batch.of(1, samples)
    assert len(encoded(batch)) <= 13 * batch.tokens
    assert len(encoded(batch)) >= 9 * batch.tokens


def test_truncated_at_every_byte_or_followed_by_another():
    raw = encoded(routed_batch())
    for length in range(len(raw)):
        with pytest.raises(WireError):
            decode_batch(raw[:length])
    with pytest.raises(WireError):
        decode_batch(raw + b"\0")


def test_a_flipped_bit_anywhere_in_the_header_is_noticed():
    raw = bytearray(encoded(routed_batch()))
    header_bytes = struct.unpack_from("<I", raw, 12)[0]
    for position in range(PRELUDE_BYTES + header_bytes):
        for bit in (1, 128):
            raw[position] ^= bit
            with pytest.raises(WireError):
                decode_batch(raw)
            raw[position] ^= bit
    assert decode_batch(raw).step == 5


def forged(batch: Batch, change) -> bytes:
    """The batch with another header, whose lengths and checksum are in order."""
    raw = encoded(batch)
    header_bytes = struct.unpack_from("<I", raw, 12)[0]
    data = raw[-(-(32 + header_bytes) // 64) * 64 :]
    header = msgspec.msgpack.decode(raw[32 : 32 + header_bytes])
    change(header)
    packed = msgspec.msgpack.encode(header)
    start = -(-(32 + len(packed)) // 64) * 64
    fixed = struct.pack("<8sIIQ", raw[:8], 2, len(packed), start + len(data))
    check = struct.pack("<II", zlib.crc32(fixed + packed), 0)
    return (fixed + check + packed).ljust(start, b"\0") + data


def ref(name: str, **changes):
    def change(header):
        old = ArrayRef(*header["columns"][name])
        header["columns"][name] = msgspec.structs.replace(old, **changes)

    return change


def table(*entries):
    return lambda header: header.update(frames=list(entries))


@pytest.mark.parametrize(
    "change",
    [
        table(),
        table((0, 2**62)),
        table((2**63, 1)),
        table((-64, 64)),
        table((0, -1)),
        lambda header: header["frames"].pop(),
        lambda header: header["frames"].__setitem__(3, header["frames"][1]),
        lambda header: header["frames"].reverse(),
        lambda header: header["frames"].append([2**40, 0]),
        lambda header: header.update(columns=None),
        lambda header: header["columns"].update(step="one"),
        lambda header: header["columns"].update(surprise=1),
        lambda header: header["columns"].update(task_ids=[]),
        lambda header: header["columns"].pop("mask"),
        lambda header: header["columns"]["routed"].append(header["columns"]["routed"][0]),
        lambda header: header["columns"]["routed"][0].update(samples=header["columns"]["tasks"]),
        lambda header: header["columns"].update(advantages=header["columns"]["offsets"]),
        lambda header: header["columns"].update(offsets=header["columns"]["span_offsets"]),
        lambda header: header["columns"].update(span_lengths=header["columns"]["span_versions"]),
        ref("ids", frame=99),
        ref("ids", frame=-1),
        ref("ids", dtype="f4"),
        ref("ids", dtype="O"),
        ref("ids", shape=(2**60,)),
        ref("ids", shape=(2**32, 2**32)),
        ref("ids", shape=(-1,)),
        ref("offsets", shape=(3, 1)),
        ref("mask", dtype="u1"),
    ],
)
def test_a_header_that_lies_gets_a_typed_error_and_no_memory(change):
    raw = forged(routed_batch(), change)
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decode_batch(raw)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20


def test_an_honest_forgery_is_read():
    assert decode_batch(forged(routed_batch(), lambda header: None)).step == 5


@given(st.data())
def test_random_bytes_in_the_arrays_give_a_batch_or_a_typed_error(data):
    raw = bytearray(encoded(routed_batch()))
    start = -(-(PRELUDE_BYTES + struct.unpack_from("<I", raw, 12)[0]) // 64) * 64
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(start, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        batch = decode_batch(raw)
    except WireError:
        return
    assert sum(len(sample.ids) for sample in batch.samples) == routed_batch().tokens


@pytest.mark.parametrize("lengths", [[5, 6, 5], [-1, 11, 5], [2**62, 2**62, 5]])
def test_spans_that_do_not_add_up_are_refused(lengths):
    raw = bytearray(encoded(routed_batch()))
    where = raw.index(np.array([5, 5, 5]).tobytes())
    raw[where : where + 24] = np.array(lengths).tobytes()
    with pytest.raises(WireError):
        decode_batch(raw)


def test_a_newer_version_is_named():
    raw = bytearray(encoded(routed_batch()))
    raw[8] = 3
    with pytest.raises(WireError, match="version 3"):
        decode_batch(raw)
