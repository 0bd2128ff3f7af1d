"""A warm call from its beginning to its answer: who is asked, in which slot, and what if nobody can answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import msgspec

from rollwright.runtimes.contract import ExecResult, Runtime
from rollwright.runtimes.scripts import run_cold
from rollwright.runtimes.slots import CpuSlots, default_slots

from .forked import run_forked
from .keeper import keeper
from .seat import Seats
from .shared import run_shared
from .stats import stats
from .zygotes import Unwarm

_seated: dict[type, bool] = {}


async def run_warm(
    runtime: Runtime,
    script: Path,
    args: Sequence[str],
    *,
    env: Mapping[str, str] | None,
    stdin: bytes,
    timeout_s: float,
    slots: CpuSlots | None,
    shared: bool,
) -> ExecResult:
    """The answer of `script`, from whatever has it loaded; cold where that fails, which is counted by its reason.

    Loading is done before a slot is taken, and once for all who wait for it.
    """
    stats.calls += 1
    loadable = await keeper().look_up(script)
    why = ""
    box = _seats_of(runtime)
    if box is not None:
        try:
            await keeper().zygote(loadable)
        except Unwarm as refusal:
            why = str(refusal)
    else:
        why = "no seats"
    counted = slots or default_slots()
    if shared and box is not None and not why:
        try:
            result = await run_shared(box, loadable, args, env=env, stdin=stdin, timeout_s=timeout_s, slots=counted)
            stats.shared += 1
            return result
        except Unwarm as refusal:
            why = str(refusal)
    async with counted.take() as queue_s:
        if box is not None and not why:
            try:
                result = await run_forked(box, loadable, args, env=env, stdin=stdin, timeout_s=timeout_s)
                stats.forked += 1
                return msgspec.structs.replace(result, queue_s=queue_s)
            except Unwarm as refusal:
                why = str(refusal)
        stats.cold[why] += 1
        result = await run_cold(runtime, loadable.python, script, args, env=env, stdin=stdin, timeout_s=timeout_s)
    return msgspec.structs.replace(result, queue_s=queue_s)


def _seats_of(runtime: Runtime) -> Seats | None:
    """The box as one that has seats. Asked of its type once: `isinstance` of a protocol costs more than the rest."""
    kind = type(runtime)
    if kind not in _seated:
        _seated[kind] = isinstance(runtime, Seats)
    return cast(Seats, runtime) if _seated[kind] else None
