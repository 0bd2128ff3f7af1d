"""Where a group lands when it comes back: its samples in one file that a crash survives, its numbers in a Landed.

The file is a batch of step 0 (batches.py has the format) that notes the Landed, so what lies there whole is all that a
run needs to go on from it. Tokens and routed experts go from the arrays that came in straight to their places in the
file, and are then read as views of the mapped file: a buffered group costs page cache, which the kernel may write back
and drop, and no memory of ours. Rows and masks that are zero are never written, and are holes of the file.

Everything here blocks and belongs in a thread; what is of the size of tokens lets other threads run meanwhile. Files
are renamed into place when they are whole, so they survive a killed process at any moment. Where they are `durable`
they are on the disk before anybody hears of the group. Where they are not, they tell the boot that wrote them, and
another boot does not believe them: a power cut may have left zeros where tokens were.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Sequence
from functools import cache
from itertools import islice
from pathlib import Path

import msgspec

from rollwright.wire import Trace, WireError
from rollwright.wire.arrays import DTYPES
from rollwright.wire.codec import prepare
from rollwright.wire.durable import sync_directory
from rollwright.wire.mapping import map_file

from .batches import decode_batch, note_of, reserve_batch
from .drafts import Draft, drafts_of, fill
from .filters import RolloutFilters
from .groups import Arrival, Fate, Landed, Outcome, Ticket, finished, outcome_of
from .layout import Place
from .samples import ErrorPolicy, Sample, maskable, tape_of
from .writing import write_at

log = logging.getLogger("rollwright.orchestrator")

_NAME = re.compile(r"(\.)?group-\d{8,}\.rwg(\.unfinished)?")

Members = list[tuple[Sample, ...]]
"""The samples of each rollout of a group."""


class _Note(msgspec.Struct, frozen=True):
    landed: Landed
    counts: tuple[int, ...]
    """How many each rollout has; they follow one another."""
    boot: str = ""
    """The boot of the machine that the file is good for; empty if it is on the disk."""


prepare(_Note)


def land(
    ticket: Ticket,
    traces: Sequence[Trace],
    *,
    filters: RolloutFilters,
    errors: ErrorPolicy = ErrorPolicy.DROP,
    directory: Path | None = None,
    durable: bool = False,
) -> tuple[Landed, Members]:
    """What came back of a group, and the samples of each of its rollouts: read-only arrays, in a file of `directory`
    or, without one, in memory. A group that gives no samples has no file. `durable`: it survives a power cut when
    this returns."""
    drafts_G = [_drafts(ticket, trace, errors) for trace in traces]  # noqa: N806
    arrivals = tuple(_arrival(trace, drafts, filters) for trace, drafts in zip(traces, drafts_G, strict=True))
    landed = Landed(ticket, arrivals)
    if directory is None or not any(drafts_G):
        return landed, [tuple(fill(draft) for draft in drafts) for drafts in drafts_G]
    path = directory / f"group-{ticket.number:08d}.rwg"
    landed = msgspec.structs.replace(landed, path=str(path))
    note = _Note(landed, tuple(map(len, drafts_G)), "" if durable else _boot())
    drafts = [draft for drafts in drafts_G for draft in drafts]
    _write(path, drafts, msgspec.msgpack.encode(note), durable=durable)
    return landed, _read(path)[1]


def recover(directory: Path) -> list[tuple[Landed, Members]]:
    """The groups that lie in `directory`, in the order of their tickets. What is torn is removed, and run again."""
    found: list[tuple[Landed, Members]] = []
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match is None:
            continue
        if match[1] or match[2]:
            path.unlink(missing_ok=True)
            continue
        try:
            found.append(_read(path))
        except WireError as error:
            log.warning("%s is torn and is removed: %s", path.name, error)
            path.unlink(missing_ok=True)
    return sorted(found, key=lambda group: group[0].ticket.number)


def discard(landed: Landed) -> None:
    """Let go of the file of a group. Samples that are still held stay readable."""
    if landed.path:
        Path(landed.path).unlink(missing_ok=True)


def _drafts(ticket: Ticket, trace: Trace, errors: ErrorPolicy) -> list[Draft]:
    masked = errors is ErrorPolicy.MASK and maskable(trace)
    if not masked and outcome_of(trace).fate is not Fate.TRAINED:
        return []
    return drafts_of(trace, group=ticket.number, source=ticket.source, masked=masked)


def _arrival(trace: Trace, drafts: list[Draft], filters: RolloutFilters) -> Arrival:
    outcome = outcome_of(trace)
    trained_tokens = sum(draft.trained_tokens for draft in drafts)
    if drafts and not trained_tokens:
        outcome = Outcome(Fate.TRAINED, f"masked:{outcome.reason}")
    versions = [
        call.policy_version for call in trace.calls if (tape := tape_of(call)) is not None and tape.sampled.any()
    ]
    return Arrival(
        outcome=outcome,
        # A task may have said True, which is a number to everybody but the file.
        reward=float(trace.reward) if math.isfinite(trace.reward) else 0.0,
        finished=finished(trace),
        agent=str(trace.info.get("agent") or ""),
        tokens=sum(draft.tokens for draft in drafts),
        trained_tokens=trained_tokens,
        bytes=sum(map(_bytes, drafts)),
        oldest_version=min(versions, default=0),
        newest_version=max(versions, default=0),
        flags=_flags(trace, drafts, filters) if trained_tokens else (),
    )


def _flags(trace: Trace, drafts: list[Draft], filters: RolloutFilters) -> tuple[str, ...]:
    """Filters look at tokens before they are written, since what they say is noted in the file."""
    return filters.flags([fill(draft, routing=False) for draft in drafts], trace) if filters else ()


def _bytes(draft: Draft) -> int:
    return sum(draft.tokens * row_bytes for row_bytes in _row_bytes(draft).values()) + 16 * len(
        draft.shape.span_lengths
    )


def _row_bytes(draft: Draft) -> dict[str, int]:
    """What one token takes in each column."""
    sizes = {"ids": 4, "mask": 1, "logprobs": 4}
    if draft.shape.routed is not None:
        dtype, layers, top_k = draft.shape.routed
        sizes |= {"routed": DTYPES[dtype].itemsize * layers * top_k, "routed_hole": 1}
    return sizes


def _write(path: Path, drafts: list[Draft], note: bytes, *, durable: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    reserved = reserve_batch([draft.shape for draft in drafts], note=note)
    unfinished = path.with_name(f".{path.name}.unfinished")
    descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(descriptor, reserved.length)
        for offset, buffer in reserved.pieces:
            write_at(descriptor, offset, [buffer])
        for draft, place in zip(drafts, reserved.places, strict=True):
            _write_columns(descriptor, draft, place)
        if durable:
            # Before the rename: a name stands for a whole file, also to whoever looks after a power cut.
            os.fdatasync(descriptor)
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    if durable:
        sync_directory(path.parent)


def _write_columns(descriptor: int, draft: Draft, place: Place) -> None:
    row_bytes = _row_bytes(draft)
    for name, row, sources in draft.runs:
        if name == "routed" and draft.shape.routed is not None:
            # Payloads of one tape may differ in their type, and lie in the wider one.
            dtype = DTYPES[draft.shape.routed[0]]
            sources = [source if source.dtype == dtype else source.astype(dtype) for source in sources]
        # An array is written as the memory that it is.
        write_at(descriptor, getattr(place, name) + row * row_bytes[name], [source.data for source in sources])


def _read(path: Path) -> tuple[Landed, Members]:
    mapped = map_file(path)
    samples = decode_batch(mapped).samples
    try:
        note = msgspec.msgpack.decode(note_of(mapped), type=_Note)
    except msgspec.DecodeError as error:
        raise WireError(f"{path.name} does not tell what landed in it: {error}") from error
    if len(note.counts) != len(note.landed.arrivals) or sum(note.counts) != len(samples):
        raise WireError(f"{path.name} has {len(samples)} samples, and tells of {sum(note.counts)}")
    if note.boot not in ("", _boot()):
        raise WireError(f"{path.name} was not brought to the disk before the machine went down")
    rest = iter(samples)
    members = [tuple(islice(rest, count)) for count in note.counts]
    return msgspec.structs.replace(note.landed, path=str(path)), members


@cache
def _boot() -> str:
    """A name for the time since this machine was switched on; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
