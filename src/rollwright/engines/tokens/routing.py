"""Routed experts as vLLM sends them: base64 of a `.npy` file, one row per position, none for the last sampled token."""

from __future__ import annotations

import base64
import binascii
import io
import math

import numpy as np

from rollwright.wire import Routing, WireError
from rollwright.wire.arrays import Experts

_MAX_HEADER = 10_000


def read_rows(text: str) -> Experts:
    """The rows as uint8 or uint16. Read by hand: numpy's own reader makes room for what a header claims."""
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
        stream = io.BytesIO(data)
        version = np.lib.format.read_magic(stream)
        reader = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = reader(stream, max_header_size=_MAX_HEADER)
    except (ValueError, KeyError, EOFError) as error:
        raise WireError(f"routed_experts is no array file: {error}") from error
    body = memoryview(data)[stream.tell() :]
    if dtype.kind not in "iu" or fortran or len(shape) != 3 or math.prod(shape) * dtype.itemsize != len(body):
        raise WireError(f"routed_experts must be whole numbers [rows, layers, top_k], got {dtype} of shape {shape}")
    return _narrow(np.frombuffer(body, dtype).reshape(shape))


def write_rows(rows: Experts) -> str:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, rows, version=(1, 0), allow_pickle=False)
    return base64.b64encode(stream.getvalue()).decode("ascii")


def placed(rows: Experts, asked_from: int, total: int) -> Routing:
    """`rows` at their place in a conversation of `total` ids, asked for from `asked_from` on. A server that knows no
    offset sends all of them."""
    if len(rows) == total - 1 - asked_from:
        return Routing(asked_from, rows)
    if len(rows) == total - 1:
        return Routing(asked_from, rows[asked_from:])
    raise WireError(f"{len(rows)} rows of routed experts came for {total} ids from position {asked_from} on")


def _narrow(rows: Experts) -> Experts:
    if rows.dtype in (np.dtype("u1"), np.dtype("<u2")):
        return rows
    top = int(rows.max(initial=0))
    if top > 0xFFFF or int(rows.min(initial=0)) < 0:
        raise WireError(f"routed_experts names expert {top}, which no model has")
    return rows.astype(np.uint8 if top <= 0xFF else np.uint16)
