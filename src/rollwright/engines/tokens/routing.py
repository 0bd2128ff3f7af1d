"""Routed experts as vLLM sends them: base64 of a `.npy` file, one row per position, none for the last sampled token."""

from __future__ import annotations

import base64
import binascii
import io
import math
import re

import numpy as np

from rollwright.wire import Routing, WireError
from rollwright.wire.arrays import Experts

_MAGIC = b"\x93NUMPY"
# The header as numpy writes it for arrays of rank three. It is read by hand, because numpy's own reader makes room for
# what a header claims, and reads it as Python.
_HEADER = re.compile(
    rb"\{'descr': '([<|][iu][1248])', 'fortran_order': False, 'shape': \((\d{1,9}), (\d{1,9}), (\d{1,9})\), ?\}\s*"
)


def read_rows(text: str) -> Experts:
    """The rows as uint8 or uint16."""
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise WireError(f"routed_experts is not base64: {error}") from error
    # Versions differ in the length of the length.
    wide = 4 if data[6:7] == b"\x02" else 2
    start = 8 + wide + int.from_bytes(data[8 : 8 + wide], "little")
    header = _HEADER.fullmatch(data[8 + wide : start])
    if not data.startswith(_MAGIC) or header is None:
        raise WireError("routed_experts must be an array file of whole numbers [rows, layers, top_k]")
    dtype, shape = np.dtype(header[1].decode()), tuple(map(int, header.groups()[1:]))
    if math.prod(shape) * dtype.itemsize != len(data) - start:
        raise WireError(f"routed_experts of shape {shape} came with {len(data) - start} bytes")
    return _narrow(np.frombuffer(data, dtype, offset=start).reshape(shape))


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
