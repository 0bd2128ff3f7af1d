"""PEP 723 scripts in a container: what the image's interpreter is, what it needs to see, and one cold run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from rollwright.runtimes.contract import ExecResult
from rollwright.runtimes.local.threads import in_thread
from rollwright.runtimes.slots import CpuSlots, default_slots
from rollwright.wire import RuntimeFault

from .api import Engine
from .containers import Container
from .crew import Crew
from .shelf import PROBE, Interpreter, Shelved, interpreter_of, packed, shelve

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
) -> ExecResult:
    """One process, one answer. Provisioning and the wait for a CPU slot come before the deadline begins (law 6)."""
    shelved = await shelve(script, await _interpreter(place))
    await _deliver(place, shelved)
    given = {**shelved.env, **(env or {})}
    async with (slots or default_slots()).take() as queue_s:
        result = await place.crew.run([*shelved.argv, *args], env=given, stdin=stdin, timeout_s=timeout_s)
    return msgspec.structs.replace(result, queue_s=queue_s)


async def _interpreter(place: Place) -> Interpreter:
    key = (str(place.engine.address), place.container.image_id)
    if key not in _interpreters:
        told = await place.crew.run(["python3", "-c", PROBE], timeout_s=_PROBE_S)
        if not told.ok:
            raise RuntimeFault(f"scripts need python3 in the image: {told.stderr.decode('utf-8', 'replace').strip()}")
        _interpreters[key] = interpreter_of(told.stdout)
    return _interpreters[key]


async def _deliver(place: Place, shelved: Shelved) -> None:
    """Send what the box does not see by itself: an engine on another machine has none of our files."""
    missing = [path for path in (shelved.script, shelved.packages) if path and path not in place.delivered]
    if place.shared or not missing:
        return
    data = await in_thread(packed, missing)
    await place.engine.call(
        "PUT", f"/containers/{place.container.id}/archive", query={"path": "/"}, data=data, timeout_s=_PROBE_S * 5
    )
    place.delivered.update(missing)
