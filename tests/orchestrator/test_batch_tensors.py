"""Samples as tensors: the same memory, and no file that a careless trainer could change."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from orchestrator.test_batches import encoded, routed_batch
from rollwright.orchestrator.batches import decode_batch
from rollwright.orchestrator.transports.files import read_batch, write_batch
from rollwright.orchestrator.transports.torch import SampleTensors, as_tensors
from rollwright.wire import UsageError


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed; pip install 'rollwright[reference]'")


def test_tensors_share_the_memory_of_the_mapped_batch(torch, tmp_path):
    batch = read_batch(write_batch(tmp_path, routed_batch(), sync=False))
    tensors = as_tensors(batch)
    assert len(tensors) == len(batch.samples)
    for sample, columns in zip(batch.samples, tensors, strict=True):
        for name in SampleTensors._fields:
            array, tensor = getattr(sample, name), getattr(columns, name)
            assert (array is None) == (tensor is None), name
            if array is not None:
                assert tensor.data_ptr() == array.ctypes.data, name
                assert np.array_equal(tensor.numpy(), array), name


def test_writing_to_a_tensor_changes_no_file(torch, tmp_path):
    path = write_batch(tmp_path, routed_batch(), sync=False)
    before = path.read_bytes()
    batch = read_batch(path)
    (tensors, *_) = as_tensors(batch.samples)
    tensors.ids[0] += 1
    assert path.read_bytes() == before
    assert not batch.samples[0].ids.flags.writeable


def test_memory_that_is_read_only_is_copied(torch):
    batch = decode_batch(encoded(routed_batch()))
    (tensors, *_) = as_tensors(batch)
    tensors.ids[0] += 1
    assert int(tensors.ids[0]) == int(batch.samples[0].ids[0]) + 1


def test_without_pytorch_the_next_step_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=r"pip install 'rollwright\[reference\]'"):
        as_tensors(routed_batch())
