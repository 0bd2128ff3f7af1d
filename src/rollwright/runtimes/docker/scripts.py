"""PEP 723 scripts in a container: what the image's interpreter is, what it needs to see, and one run, cold or warm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from rollwright.runtimes.contract import ExecResult
from rollwright.runtimes.local.threads import in_thread
from rollwright.runtimes.slots import CpuSlots, default_slots
from rollwright.runtimes.warm.boxed import run_in_box
from rollwright.runtimes.warm.inbox import BoxScript, Inbox, programs
from rollwright.wire import RuntimeFault

from .api import Engine
from .containers import Container
from .crew import Crew
from .shelf import PROBE, Interpreter, interpreter_of, packed, shelve, shelve_programs
from .spec import SHELF

_PROBE_S = 60.0
_interpreters: dict[tuple[str, str], Interpreter] = {}
"""By engine and image, which does not change under its id."""


class Place(Protocol):
    """Where a script is run: a container and what goes with it."""

    engine: Engine
    container: Container
    crew: Crew
    shared: bool
    delivered: set[str]


async def run_script(
    place: Place,
    script: Path,
    args: Sequence[str],
    *,
    env: Mapping[str, str] | None,
    stdin: bytes,
    timeout_s: float,
    slots: CpuSlots | None,
    inbox: Inbox | None,
) -> ExecResult:
    """One process, one answer; warm where there is an `inbox`. Provisioning, loading and the wait for a CPU slot come
    before the deadline begins (law 6)."""
    shelved = await shelve(script, await _interpreter(place))
    await _deliver(place, shelved.script, shelved.packages)
    given = {**shelved.env, **(env or {})}
    chosen = slots or default_slots()

    async def cold() -> ExecResult:
        return await place.crew.run([*shelved.argv, *args], env=given, stdin=stdin, timeout_s=timeout_s)

    if inbox is not None:
        return await run_in_box(
            inbox,
            BoxScript(*shelved.argv, shelved.digest, shelved.env),
            args,
            env=env or {},
            stdin=stdin,
            timeout_s=timeout_s,
            output_limit=place.crew.output_limit,
            slots=chosen,
            cold=cold,
        )
    async with chosen.take() as queue_s:
        result = await cold()
    return msgspec.structs.replace(result, queue_s=queue_s)


async def bring_programs(place: Place) -> str:
    """Put what loads scripts on the shelf, where the box cannot change it; the directory inside the box."""
    folder = await in_thread(lambda: shelve_programs(programs()))
    await _deliver(place, folder)
    return f"{SHELF}/{folder}"


async def _interpreter(place: Place) -> Interpreter:
    key = (str(place.engine.address), place.container.image_id)
    if key not in _interpreters:
        told = await place.crew.run(["python3", "-c", PROBE], timeout_s=_PROBE_S)
        if not told.ok:
            raise RuntimeFault(f"scripts need python3 in the image: {told.stderr.decode('utf-8', 'replace').strip()}")
        _interpreters[key] = interpreter_of(told.stdout)
    return _interpreters[key]


async def _deliver(place: Place, *paths: str) -> None:
    """Send what the box does not see by itself: an engine on another machine has none of our files."""
    missing = [path for path in paths if path and path not in place.delivered]
    if place.shared or not missing:
        return
    data = await in_thread(packed, missing)
    await place.engine.call(
        "PUT", f"/containers/{place.container.id}/archive", query={"path": "/"}, data=data, timeout_s=_PROBE_S * 5
    )
    place.delivered.update(missing)
