"""Samples as tensors that share their memory. Needs PyTorch, which a trainer has; nothing else here imports it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rollwright.orchestrator.batches import Batch
from rollwright.orchestrator.samples import Sample
from rollwright.wire import UsageError
from rollwright.wire.arrays import AnyArray

if TYPE_CHECKING:
    import torch


class SampleTensors(NamedTuple):
    """The columns of one sample. What is constant for it stays with the sample itself."""

    ids: torch.Tensor
    mask: torch.Tensor
    logprobs: torch.Tensor
    span_lengths: torch.Tensor
    span_versions: torch.Tensor
    routed: torch.Tensor | None
    routed_hole: torch.Tensor | None


def as_tensors(samples: Batch | Sequence[Sample]) -> list[SampleTensors]:
    """The samples of a batch, or of one of its micro-batches, sample by sample.

    Nothing is copied where the memory can be written to, as it can in whatever a BatchReceiver gives: a batch is mapped
    privately, so a tensor that is written to changes the numpy view of it and no file. Other memory is copied.
    """
    chosen = samples.samples if isinstance(samples, Batch) else samples
    return [_tensors_of(sample) for sample in chosen]


def _tensors_of(sample: Sample) -> SampleTensors:
    routed, hole = sample.routed, sample.routed_hole
    return SampleTensors(
        _tensor(sample.ids),
        _tensor(sample.mask),
        _tensor(sample.logprobs),
        _tensor(sample.span_lengths),
        _tensor(sample.span_versions),
        None if routed is None else _tensor(routed),
        None if hole is None else _tensor(hole),
    )


def _tensor(array: AnyArray) -> torch.Tensor:
    try:
        import torch
    except ImportError as error:
        raise UsageError("tensors need PyTorch; install it with: pip install 'rollwright[reference]'") from error
    writable = array.view()
    try:
        # PyTorch knows no tensors that refuse to be written to, and warns of arrays that do.
        writable.flags.writeable = True
    except ValueError:
        writable = array.copy()
    return torch.from_numpy(writable)
