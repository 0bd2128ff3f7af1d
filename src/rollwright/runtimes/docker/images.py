"""Images that are built from a directory with a Dockerfile: once for each content, whoever asks and however often.

The name of such an image is the hash of what it is built from, so an engine that has it needs no build, and a changed
file makes another image. Not covered: .dockerignore, which is not read. Images stay until somebody prunes them.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from pathlib import Path

from rollwright.runtimes.local.threads import in_thread
from rollwright.runtimes.provision.flights import Flights
from rollwright.wire import RuntimeFault

from .api import Engine

BUILD_S = 1800.0
CONTEXT_LIMIT = 256 << 20
"""Largest directory, in bytes, that is sent to the engine."""
REPOSITORY = "rollwright-build"
_LAST_WORDS = 1500
_builds: Flights[None] = Flights()
_names: dict[tuple[str, str], str] = {}
"""Names of directories as they were last seen, by place and by what `stat` says, so that a box costs no reading."""
_KEPT_NAMES = 4096


async def built(engine: Engine, directory: str) -> str:
    """The name of the image that `directory` describes, built if the engine lacks it. RuntimeFault if it does not."""
    name = await in_thread(_name_of, Path(directory))
    if (await engine.call("GET", f"/images/{name}/json", allow=(404,))).status == 404:
        await _builds.join(f"{engine.address} {name}", lambda: _build(engine, directory, name))
    return name


async def _build(engine: Engine, directory: str, name: str) -> None:
    context = await in_thread(_packed, Path(directory))
    # Quiet: a build that ends well says only its id, and one that does not says everything.
    query = {"t": name, "rm": "1", "forcerm": "1", "q": "1"}
    try:
        reply = await engine.call("POST", "/build", query=query, data=context, timeout_s=BUILD_S)
    except RuntimeFault as error:
        raise RuntimeFault(f"the image in {directory} was not built: {error}") from error
    # Progress comes as JSON, with status 200 also where it ends in an error.
    lines = reply.value.splitlines() if isinstance(reply.value, str) else [str(reply.value)]
    if lines and "error" in lines[-1]:
        raise RuntimeFault(f"the image in {directory} was not built: {' '.join(lines)[-_LAST_WORDS:]}")


def _name_of(directory: Path) -> str:
    key = str(directory), _look_of(directory)
    if key not in _names:
        if len(_names) >= _KEPT_NAMES:
            _names.clear()
        _names[key] = f"{REPOSITORY}:{hashlib.sha256(_packed(directory)).hexdigest()[:40]}"
    return _names[key]


def _look_of(directory: Path) -> str:
    stats = [(str(path), path.lstat()) for path in _files(directory)]
    told = [(name, stat.st_mtime_ns, stat.st_size, stat.st_mode, stat.st_ino) for name, stat in stats]
    if sum(stat.st_size for _, stat in stats) > CONTEXT_LIMIT:
        raise RuntimeFault(
            f"{directory} holds over {CONTEXT_LIMIT >> 20} MiB, which is too much to build an image from"
        )
    return hashlib.sha256(repr(told).encode()).hexdigest()


def _files(directory: Path) -> list[Path]:
    if not (directory / "Dockerfile").is_file():
        raise RuntimeFault(f"{directory} has no Dockerfile")
    return sorted(Path(place) / name for place, folders, names in os.walk(directory) for name in (*folders, *names))


def _packed(directory: Path) -> bytes:
    """The directory as a tar that depends on nothing but names, contents and modes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in _files(directory):
            tar.add(path, str(path.relative_to(directory)), recursive=False, filter=_plain)
    return out.getvalue()


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if not (entry.isfile() or entry.isdir() or entry.issym()):
        return None
    entry.mtime = entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
