"""Columns: numpy arrays of a few known types, C-contiguous from the first response to the trainer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import WireError

Ids = NDArray[np.int32]
Logprobs = NDArray[np.float32]
Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Experts = NDArray[Any]
"""uint8 or uint16, shape [rows, layers, top_k]."""

AnyArray = np.ndarray[Any, np.dtype[Any]]

# Names on the wire and on disk. Little-endian and fixed: a file written on one machine is read on another.
DTYPES: dict[str, np.dtype[Any]] = {
    "i4": np.dtype("<i4"),
    "f4": np.dtype("<f4"),
    "b1": np.dtype("?"),
    "u1": np.dtype("u1"),
    "u2": np.dtype("<u2"),
    "i8": np.dtype("<i8"),
    "f8": np.dtype("<f8"),
}
NAMES: dict[np.dtype[Any], str] = {dtype: name for name, dtype in DTYPES.items()}


def column(values: ArrayLike, dtype: str) -> AnyArray:
    """`values` as a contiguous array of a wire type. The one place where a copy or a conversion may happen."""
    return np.ascontiguousarray(values, dtype=DTYPES[dtype])


def check_column(array: AnyArray, dtype: str, what: str, ndim: int = 1) -> None:
    """Refuse an array that the codec could not send as it is."""
    if array.dtype != DTYPES[dtype] or array.ndim != ndim or not array.flags.c_contiguous:
        shape = "x".join(map(str, array.shape))
        raise WireError(f"{what} must be a contiguous {ndim}-d {dtype} array, got {array.dtype} of shape {shape}")
