"""The columns of a batch as they come out of a file: proven to fit one another, then cut into samples.

The format, and the meaning of each field, is told in batches.py. Nothing here copies a column.
"""

from __future__ import annotations

import msgspec
import numpy as np

from rollwright.wire import WireError
from rollwright.wire.arrays import AnyArray, Experts, Floats, Ids, Ints, Logprobs, Mask, check_column

from .samples import Sample

_CONSTANTS = ("advantages", "rewards", "tasks", "origins", "groups", "attempts", "branches", "ranks", "micros")
_TYPES = dict.fromkeys(("ids", "tasks", "origins", "ranks", "micros"), "i4")
_TYPES |= {"mask": "b1", "logprobs": "f4", "advantages": "f8", "rewards": "f8"}
"""Of the columns; those that are not named here are i8."""


class RoutedColumn(msgspec.Struct, frozen=True, eq=False):
    samples: Ids
    rows: Experts
    hole: Mask

    def __post_init__(self) -> None:
        check_column(self.samples, "i4", "samples with routing")
        check_column(self.hole, "b1", "the holes")
        if self.rows.dtype not in (np.dtype("u1"), np.dtype("<u2")) or self.rows.ndim != 3:
            raise WireError(f"routed experts of {self.rows.dtype} and {self.rows.ndim} dimensions are not ours")


class Columns(msgspec.Struct, frozen=True, eq=False, forbid_unknown_fields=True):
    """A batch as it lies in a file; the fields are those of the format above."""

    step: int
    policy_version: int
    task_ids: tuple[str, ...]
    sources: tuple[str, ...]
    offsets: Ints
    ids: Ids
    mask: Mask
    logprobs: Logprobs
    advantages: Floats
    rewards: Floats
    tasks: Ids
    origins: Ids
    groups: Ints
    attempts: Ints
    branches: Ints
    ranks: Ids
    micros: Ids
    span_offsets: Ints
    span_lengths: Ints
    span_versions: Ints
    routed: tuple[RoutedColumn, ...]

    def __post_init__(self) -> None:
        for name in self.__struct_fields__[4:-1]:
            check_column(getattr(self, name), _TYPES.get(name, "i8"), name)
        samples = len(self.offsets) - 1
        _check_offsets(self.offsets, len(self.ids), samples)
        _check_offsets(self.span_offsets, len(self.span_lengths), samples)
        _require(len(self.ids) == len(self.mask) == len(self.logprobs), "tokens")
        _require(len(self.span_lengths) == len(self.span_versions), "spans")
        _require(all(len(getattr(self, name)) == samples for name in _CONSTANTS), "samples")
        _require(_within(self.tasks, len(self.task_ids)) and _within(self.origins, len(self.sources)), "tasks")
        self._check_packing()
        # A byte that is neither 0 nor 1 makes a numpy bool that is neither true nor false.
        _require(not len(self.mask) or int(self.mask.view(np.uint8).max()) <= 1, "mask")
        # That they add up is checked by each sample.
        _require(_within(self.span_lengths, len(self.ids) + 1), "span lengths")
        self._check_routed(samples)

    def _check_packing(self) -> None:
        """A reader makes a list per micro-batch, so there are no more of these than samples could fill."""
        packed = self.ranks >= 0
        _require(bool(((self.micros >= 0) == packed).all()), "packing")
        _require(_within(self.micros + 1, 1 + len(self.micros)) and _within(self.ranks + 1, 2**31), "packing")

    def _check_routed(self, samples: int) -> None:
        lengths = np.diff(self.offsets)
        seen = np.zeros(samples, np.bool_)
        for column in self.routed:
            _require(_within(column.samples, samples), "samples with routing")
            _require(bool((np.diff(column.samples) > 0).all()) and not seen[column.samples].any(), "routing")
            _require(len(column.rows) == len(column.hole) == int(lengths[column.samples].sum()), "routing rows")
            seen[column.samples] = True


def samples_in(columns: Columns) -> tuple[Sample, ...]:
    """Views of the columns, sample by sample; the loop is over samples, never over tokens."""
    token_at, span_at = columns.offsets.tolist(), columns.span_offsets.tolist()
    routed = _routed_views(columns)
    constants = zip(*(getattr(columns, name).tolist() for name in _CONSTANTS), strict=True)
    samples = []
    for index, (advantage, reward, task, origin, group, attempt, branch, rank, micro) in enumerate(constants):
        tokens = slice(token_at[index], token_at[index + 1])
        spans = slice(span_at[index], span_at[index + 1])
        rows, hole = routed.get(index, (None, None))
        sample = Sample(
            task_id=columns.task_ids[task],
            attempt=attempt,
            branch=branch,
            reward=reward,
            advantage=advantage,
            group=group,
            source=columns.sources[origin],
            rank=rank,
            micro=micro,
            ids=columns.ids[tokens],
            mask=columns.mask[tokens],
            logprobs=columns.logprobs[tokens],
            span_lengths=columns.span_lengths[spans],
            span_versions=columns.span_versions[spans],
            routed=rows,
            routed_hole=hole,
        )
        samples.append(sample)
    return tuple(samples)


def _routed_views(columns: Columns) -> dict[int, tuple[Experts, Mask]]:
    lengths = np.diff(columns.offsets).tolist()
    views: dict[int, tuple[Experts, Mask]] = {}
    for column in columns.routed:
        start = 0
        for index in column.samples.tolist():
            place = slice(start, start + lengths[index])
            views[index] = (column.rows[place], column.hole[place])
            start = place.stop
    return views


def _check_offsets(offsets: Ints, total: int, samples: int) -> None:
    _require(len(offsets) == samples + 1 >= 1, "offsets")
    # Compared, not subtracted: a difference of hostile offsets wraps around.
    ascending = bool((offsets[1:] >= offsets[:-1]).all())
    _require(ascending and int(offsets[0]) == 0 and int(offsets[-1]) == total, "offsets")


def _within(values: AnyArray, limit: int) -> bool:
    return not len(values) or (int(values.min()) >= 0 and int(values.max()) < limit)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise WireError(f"the {what} of a batch contradict one another")
