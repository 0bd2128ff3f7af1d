"""A published agent, brought into a box that does not show this host's files.

The package is packed once per host and unpacked in the box, in one stream that is never held as a whole; a box that has
it already is left alone. The box needs `sh`, `tar` and `gzip`. Which platform is meant, the box itself says: it may be
another one than this host's.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rollwright.runtimes import Runtime
from rollwright.runtimes.provision import NpmProgram, npm_platform, provision_npm
from rollwright.runtimes.provision.building import locked, run_builder
from rollwright.wire import HarnessError, RuntimeFault

BRING_S = 900.0
"""For all of it, packing included."""
_CHUNK = 4 << 20
_ASK_S = 60.0
_TAIL_S = 300.0
_PLACES = '/opt /var/tmp "$HOME" /tmp'
"""Where programs may be kept. In some boxes the last two live in memory."""
_LOOK = f"""uname -sm
for place in {_PLACES}; do
    [ -f "$place/rollwright/$1/.ready" ] && echo "has $place/rollwright/$1" && exit
done
for place in {_PLACES}; do
    mkdir -p "$place/rollwright" 2>/dev/null && [ -w "$place/rollwright" ] && echo "room $place/rollwright/$1" && exit
done
"""
_UNPACK = 'rm -rf "$1" && mkdir -p "$1" && tar -xzf - -C "$1" && : > "$1/.ready"'


async def brought(runtime: Runtime, choose: Callable[[str], NpmProgram]) -> str:
    """Where the program lies inside the box, brought there if need be. `choose` names it for a platform."""
    try:
        async with asyncio.timeout(BRING_S):
            return await _brought(runtime, choose)
    except TimeoutError as error:
        raise RuntimeFault(f"it was not brought into {runtime.name} within {BRING_S:g} s") from error


async def _brought(runtime: Runtime, choose: Callable[[str], NpmProgram]) -> str:
    # What a program is kept under is the same for all platforms: a box has one.
    berth = await look(runtime, choose("any").place.name)
    program = choose(berth.platform)
    file = await provision_npm(program)
    if not berth.taken:
        await unpack(runtime, await packed(program), berth.place)
    return f"{berth.place}/{file.relative_to(program.package_dir).as_posix()}"


class Berth(NamedTuple):
    """Where a program lies in a box, or would."""

    platform: str
    """Of the box, as packages of npm name it."""
    taken: bool
    """It is there already."""
    place: str


async def look(runtime: Runtime, label: str) -> Berth:
    """The berth of what is kept under `label`. HarnessError where there is none."""
    told = await runtime.run(["sh", "-c", _LOOK, "sh", label], timeout_s=_ASK_S)
    kernel, _, rest = told.text.partition("\n")
    system, _, machine = kernel.partition(" ")
    platform = npm_platform(system, machine)
    if not platform:
        raise HarnessError(f"{runtime.name} runs {kernel.strip()!r}, for which no agent is published")
    state, _, place = rest.strip().partition(" ")
    if not place:
        raise HarnessError(f"{runtime.name} has no place that programs could be kept in: all are read-only")
    return Berth(platform, state == "has", place)


async def packed(program: NpmProgram) -> Path:
    """The package as one archive, made once per host."""
    archive = program.place.with_name(f"{program.place.name}.tar.gz")
    async with locked(archive):
        if not archive.exists():
            half = archive.with_name(f"{archive.name}.half")
            # The fastest compression halves what travels; better ones cost more than they save.
            words = ["tar", "-I", "gzip -1", "-cf", str(half), "-C", str(program.package_dir), "."]
            await run_builder("tar", words, f"packing {program.package} {program.version}")
            await asyncio.to_thread(os.replace, half, archive)
    return archive


async def unpack(runtime: Runtime, archive: Path, place: str) -> None:
    """Put what an archive holds into a place of the box. RuntimeFault where it does not go in."""
    async with await runtime.open_process(["sh", "-c", _UNPACK, "sh", place]) as process:
        with await asyncio.to_thread(archive.open, "rb") as source:
            while chunk := await asyncio.to_thread(source.read, _CHUNK):
                await process.write(chunk)
        await process.close_stdin()
        result = await process.wait(_TAIL_S)
    if not result.ok:
        words = result.stderr.decode("utf-8", "replace").strip()[-500:]
        raise RuntimeFault(f"{runtime.name} could not unpack {archive.name}: {words or result.ending}")
