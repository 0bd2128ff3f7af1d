"""How much of a sequence has been said before, in time n log n and numpy alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollwright.wire.arrays import Ids

Hashes = NDArray[np.uint64]

_BASE = np.uint64(0x9E3779B97F4A7C15)
"""Arithmetic is modulo 2**64, which numpy does by itself. The base is odd, so multiplying by it loses nothing."""


def repeated_share(ids: Ids, window: int) -> float:
    """The share of all runs of `window` ids that have come before; 0 where there are none."""
    runs = len(ids) - window + 1
    if runs < 2:
        return 0.0
    # Sorted and compared by hand: numpy.unique puts them into a table, which takes twenty times as long.
    hashes = np.sort(_run_hashes(ids, window))
    return int(np.count_nonzero(hashes[1:] == hashes[:-1])) / runs


def _run_hashes(ids: Ids, window: int) -> Hashes:
    """One number per run. Two runs that differ have the same one with a chance of about 2**-64: what is summed is not
    the ids but a scrambled form of them, since the low bits of plain powers tell little."""
    powers = np.full(len(ids), _BASE)
    powers[:1] = 1
    np.multiply.accumulate(powers, out=powers)
    sums = np.zeros(len(ids) + 1, np.uint64)
    np.cumsum(_scrambled(ids) * powers, out=sums[1:])
    # A run further on has higher powers; all are brought to that of the last one.
    return _scrambled((sums[window:] - sums[:-window]) * powers[window - 1 :][::-1])


def _scrambled(values: NDArray[np.int32] | Hashes) -> Hashes:
    """Every bit of the outcome depends on every bit of the value: two rounds of multiply and shift."""
    mixed = values.astype(np.uint64)
    for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        mixed ^= mixed >> np.uint64(30)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return mixed
