"""A bash for boxes that have none: this host's own.

Agents run their commands with bash, and small images do not have it. Nobody publishes one that could be fetched, so the
host's is brought: the program with the libraries that it names and the loader that finds them, which run whatever C
library the box has. A box of another platform than this host's needs a bash of its own, and is told so.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

from rollwright.runtimes import Runtime
from rollwright.runtimes.provision import cache_dir, host_platform
from rollwright.runtimes.provision.building import locked
from rollwright.wire import RuntimeFault

from .bringing import BRING_S, look, unpack

_ASK_S = 60.0
_HOST_S = 30.0
_FIND = 'command -v bash > /dev/null || printf %s "$PATH"'
"""Says where the box looks for programs, unless one of them is bash."""
_LIBRARY = re.compile(r"(=> )?(/\S+) \(0x")
"""In what `ldd` says. The loader alone stands without an arrow."""
_WRAPPER = """#!/bin/sh
with=${{0%/*}}/with
exec "$with/loader" {argv0}--library-path "$with" "$with/bash" "$@"
"""
_ARGV0 = '--argv0 "$0" '
"""So that bash knows itself by the name that works. Loaders before 2021 do not know the word."""


async def bash_in(runtime: Runtime) -> dict[str, str]:
    """The variables by which programs of the box find the bash that was brought; none where it has one of its own, as
    boxes have that show the host's files. RuntimeFault where it cannot be brought."""
    if runtime.shows_cache:
        return {}
    try:
        async with asyncio.timeout(BRING_S):
            told = await runtime.run(["sh", "-c", _FIND], timeout_s=_ASK_S)
            if not told.text:
                return {}
            place = await _brought(runtime)
    except TimeoutError as error:
        raise RuntimeFault(f"bash was not brought into {runtime.name} within {BRING_S:g} s") from error
    return {"SHELL": f"{place}/bash", "PATH": f"{place}:{told.text}"}


async def _brought(runtime: Runtime) -> str:
    archive = await packed_bash()
    berth = await look(runtime, archive.name.removesuffix(".tar.gz"))
    if berth.platform != host_platform():
        why = f"and this host's is for {host_platform() or 'another platform'}"
        raise RuntimeFault(f"{runtime.name} ({berth.platform}) has no bash, {why}; use an image that has one")
    if not berth.taken:
        await unpack(runtime, archive, berth.place)
    return berth.place


async def packed_bash() -> Path:
    """This host's bash with all that it needs as one archive, made once for each version of it."""
    program = shutil.which("bash")
    if program is None:
        raise RuntimeFault("there is no bash on this host that could be brought; use an image that has one")
    try:
        digest = await asyncio.to_thread(lambda: hashlib.sha256(Path(program).read_bytes()).hexdigest())
        archive = cache_dir() / "shells" / f"bash-{digest[:16]}.tar.gz"
        async with locked(archive):
            if not await asyncio.to_thread(archive.exists):
                await asyncio.to_thread(_pack, program, archive)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeFault(f"the bash of this host could not be packed: {error}") from error
    return archive


def _pack(program: str, archive: Path) -> None:
    half = archive.with_name(f"{archive.name}.half")
    with tarfile.open(half, "w:gz", compresslevel=1) as tar:
        for name, data in _files(program).items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755
            tar.addfile(entry, io.BytesIO(data))
    os.replace(half, archive)


def _files(program: str) -> dict[str, bytes]:
    """What a box needs, by its place there."""
    # For a program that needs no libraries it ends with an error, and names none.
    told = subprocess.run(["ldd", program], capture_output=True, text=True, timeout=_HOST_S, check=False).stdout
    found = _LIBRARY.findall(told)
    loaders = [path for arrow, path in found if not arrow]
    if not loaders:
        return {"bash": Path(program).read_bytes()}
    files = {f"with/{os.path.basename(path)}": Path(path).read_bytes() for arrow, path in found if arrow}
    files |= {"with/loader": Path(loaders[0]).read_bytes(), "with/bash": Path(program).read_bytes()}
    return files | {"bash": _wrapper(loaders[0], program).encode()}


def _wrapper(loader: str, program: str) -> str:
    words = [loader, "--argv0", "bash", program, "-c", ":"]
    knows = subprocess.run(words, capture_output=True, timeout=_HOST_S, check=False).returncode == 0
    return _WRAPPER.format(argv0=_ARGV0 if knows else "")
