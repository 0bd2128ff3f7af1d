"""The plain way, for comparison: arrays grow by concatenation turn by turn, tokens become lists, routed experts become
base64, and a thread encodes the step with msgspec, which holds the interpreter for as long as it takes."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rollwright.wire import Trace

copied_bytes = 0


def compile_sample(trace: Trace) -> dict[str, Any]:
    """Turn by turn, each time all that is there so far moves into a larger array."""
    global copied_bytes
    ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    rows: np.ndarray[Any, Any] | None = None
    for call in trace.calls:
        tape = call.tokens
        assert tape is not None
        ids += tape.ids.tolist()
        mask += tape.sampled.tolist()
        logprobs += tape.logprobs.tolist()
        if tape.routing is not None:
            rows = (
                tape.routing.rows if rows is None else np.concatenate([rows[: tape.routing.start], tape.routing.rows])
            )
            copied_bytes += rows.nbytes
    sample: dict[str, Any] = {"ids": ids, "mask": mask, "logprobs": logprobs, "reward": trace.reward, "advantage": 0.0}
    if rows is not None:
        sample |= {"routed": base64.b64encode(rows.tobytes()).decode(), "shape": rows.shape}
        copied_bytes += rows.nbytes * 2
    return sample


async def step(traces: Sequence[Trace], path: Path) -> tuple[int, float]:
    """Samples in a thread as they arrive, the batch in a thread at the boundary. Returns bytes on the wire and CPU."""
    global copied_bytes
    cpu = time.process_time()
    samples = [await asyncio.to_thread(compile_sample, trace) for trace in traces]
    mean = sum(sample["reward"] for sample in samples) / len(samples)
    for sample in samples:
        sample["advantage"] = sample["reward"] - mean
    raw = await asyncio.to_thread(msgspec.msgpack.encode, samples)
    copied_bytes += len(raw)
    await asyncio.to_thread(path.write_bytes, raw)
    return len(raw), time.process_time() - cpu
