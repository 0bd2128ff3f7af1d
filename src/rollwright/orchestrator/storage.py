"""The files of a run that it goes on from: groups that have landed, batches, the checkpoint. Everything here blocks and
belongs in a thread.

    checkpoint.msgpack    replaced after every step
    groups/               the samples of finished groups, until the batch that holds them is in a checkpoint
    batch-N.rwb           the batches, until the trainer has acknowledged them and they are in a checkpoint

What landed or was shipped after the last checkpoint tells so by its file, so a crash at any moment loses no finished
group and trains none twice. Where the files of groups are durable, so does a power cut.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from rollwright.wire import Trace, UsageError
from rollwright.wire.durable import hold_directory

from .arriving import arrays_of
from .batches import Batch
from .checkpoints import Checkpoint, load_checkpoint, save_checkpoint
from .filters import RolloutFilters
from .groups import Landed, Ticket
from .landing import Members, discard, land, recover
from .packing import PackSettings, packed
from .plans import Cut
from .samples import ErrorPolicy, Sample
from .transports.files import batch_path, read_batch, steps_in


class Found(msgspec.Struct, frozen=True):
    """What an earlier life of the run has left."""

    checkpoint: Checkpoint | None
    landed: tuple[Landed, ...]
    shipped: dict[int, list[tuple[int, int]]]
    """(group, member) of the rollouts in each batch since the checkpoint."""


class Storage:
    def __init__(
        self,
        directory: Path,
        *,
        filters: RolloutFilters,
        errors: ErrorPolicy,
        packing: PackSettings | None,
        durable: bool = True,
    ) -> None:
        self.directory = directory
        self._durable = durable
        self._groups = directory / "groups"
        self._filters = filters
        self._errors = errors
        self._packing = packing
        self._samples: dict[int, Members] = {}
        self._hold = -1

    def open(self, identity: dict[str, str | int | float]) -> Found:
        """UsageError if another process runs here, or if what ran here was another run."""
        self._groups.mkdir(parents=True, exist_ok=True)
        self._hold = hold_directory(self.directory)
        checkpoint = load_checkpoint(self.directory, identity)
        found = recover(self._groups)
        self._samples = {landed.ticket.number: members for landed, members in found}
        if checkpoint is not None:
            self._check_all_there(checkpoint)
        first = {landed.ticket.number: landed.ticket.first_attempt for landed, _ in found}
        done = checkpoint.plan.step if checkpoint else 0
        shipped = {
            step: _members(read_batch(batch_path(self.directory, step)), first)
            for step in steps_in(self.directory)
            if step > done
        }
        return Found(checkpoint, tuple(landed for landed, _ in found), shipped)

    def _check_all_there(self, checkpoint: Checkpoint) -> None:
        """A checkpoint is on the disk, and so are durable groups. What it refers to and is not there cannot be run
        again: the rest of the same group is settled."""
        missing = [
            Path(group.path).name for group in checkpoint.plan.landed if group.ticket.number not in self._samples
        ]
        if missing:
            told = f"{missing[0]} and {len(missing) - 1} more" if len(missing) > 1 else missing[0]
            raise UsageError(
                f"{self._groups} has lost {told}, which the run was going to train on (removed by hand, or by a power "
                "cut without durable = true); begin the run anew in another directory"
            )

    def close(self) -> None:
        if self._hold >= 0:
            os.close(self._hold)
            self._hold = -1

    def land(self, ticket: Ticket, traces: list[Trace]) -> Landed:
        """Empties `traces`, so that the memory of what came in is given back here and not on the loop."""
        landed, members = land(
            ticket,
            traces,
            filters=self._filters,
            errors=self._errors,
            directory=self._groups,
            durable=self._durable,
        )
        let_go(traces)
        self._samples[ticket.number] = members
        return landed

    def batch(self, cut: Cut) -> Batch:
        """Views of the groups' files, with the advantages that were found for them. None of their pages is looked at:
        the kernel may have dropped it, and whoever waits for the disk in Python makes everybody wait."""
        samples: list[Sample] = []
        for pick in cut.picks:
            members = self._samples[pick.group][pick.member]
            samples += [msgspec.structs.replace(sample, advantage=pick.advantage) for sample in members]
        whole = packed(samples, self._packing) if self._packing else samples
        return Batch(cut.step, cut.newest_version, tuple(whole))

    def save(self, checkpoint: Checkpoint, released: Iterable[Landed]) -> None:
        """Put it on record, and only then let go of what it no longer refers to."""
        save_checkpoint(self.directory, checkpoint)
        for landed in released:
            self.forget(landed)

    def forget(self, landed: Landed) -> None:
        self._samples.pop(landed.ticket.number, None)
        discard(landed)


def let_go(traces: list[Trace]) -> None:
    """Give back the memory of traces array by array. A group of 200 MB takes up to 20 ms, more where CPUs are scarce,
    and whoever frees memory holds the interpreter meanwhile; between two arrays others have their turn."""
    arrays = [array for trace in traces for call in trace.calls if call.tokens for array in arrays_of(call.tokens)]
    traces.clear()
    while arrays:
        arrays.pop()


def _members(batch: Batch, first_attempt: dict[int, int]) -> list[tuple[int, int]]:
    """The rollouts of a batch, each once; a group whose file is gone was not of this run."""
    keys = [(sample.group, sample.attempt - first_attempt.get(sample.group, 0)) for sample in batch.samples]
    return list(dict.fromkeys(keys))
