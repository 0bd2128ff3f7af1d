"""Scripts and their packages for the interpreters of images, prepared on the host and seen in boxes read-only.

A script runs with the image's own `python3`. What it declares is installed once per set of needs and kind of
interpreter, by `uv` on the host, into a directory of the cache that every box sees at the same place; an engine that
does not share our files is sent the same directory. Packages reach the script through PYTHONPATH. They are compiled
where the image's version is the one that Rollwright runs on. A script is shelved alone: files beside it are not seen.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import secrets
import shutil
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rollwright.runtimes.local.threads import in_thread
from rollwright.runtimes.provision import cache_dir
from rollwright.runtimes.provision.building import DEADLINE_S, locked
from rollwright.runtimes.provision.flights import Flights
from rollwright.runtimes.provision.interpreters import run_uv
from rollwright.runtimes.provision.pep723 import Needs, admits, needs_of
from rollwright.wire import RuntimeFault

from .spec import SHELF

PROBE = """
import json, sys, sysconfig
libc = sysconfig.get_config_var("HOST_GNU_TYPE") or ""
print(json.dumps([*sys.version_info[:3], sysconfig.get_platform(), libc]))
"""
"""Run with the image's python3, it tells which packages fit."""

_MARKER = ".rollwright-ready"
_flights: Flights[None] = Flights()


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The python3 of an image."""

    version: tuple[int, int, int]
    platform: str
    """As uv names it."""

    @property
    def minor(self) -> str:
        return f"{self.version[0]}.{self.version[1]}"


@dataclass(frozen=True, slots=True)
class Shelved:
    """A script and its packages, as paths inside the shelf."""

    script: str
    packages: str
    digest: str
    """Of the script's content."""

    @property
    def argv(self) -> tuple[str, str]:
        return ("python3", f"{SHELF}/{self.script}")

    @property
    def env(self) -> dict[str, str]:
        return {"PYTHONPATH": f"{SHELF}/{self.packages}"} if self.packages else {}


def shelf_dir() -> Path:
    return cache_dir() / "shelf"


def interpreter_of(answer: bytes) -> Interpreter:
    """What PROBE told."""
    try:
        major, minor, micro, platform, libc = msgspec.json.decode(answer)
        machine = str(platform).rpartition("-")[2]
        flavour = "unknown-linux-musl" if "musl" in libc else "manylinux_2_28"
        return Interpreter((major, minor, micro), f"{machine}-{flavour}")
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise RuntimeFault(f"the image's python3 told nothing useful of itself: {answer[:200]!r}") from error


async def shelve(script: Path, interpreter: Interpreter) -> Shelved:
    """Put `script` and what it declares on the shelf, unless they are there."""
    needs, name, digest = await in_thread(_shelve_script, script)
    if not admits(needs.requires_python, interpreter.version):
        have = ".".join(map(str, interpreter.version))
        raise RuntimeFault(f"script {script} requires Python {needs.requires_python}; the image has {have}")
    if not needs.dependencies:
        return Shelved(name, "", digest)
    packages = f"packages/{_key(needs, interpreter)}"
    place = shelf_dir() / packages
    if not await in_thread(Path(place, _MARKER).exists):
        await _flights.join(str(place), lambda: _build(needs, interpreter, place))
    return Shelved(name, packages, digest)


def packed(paths: Sequence[str]) -> bytes:
    """A tar of paths of the shelf, for the root directory of a container. Blocks; run it in a thread."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path in paths:
            tar.add(shelf_dir() / path, f"{SHELF.lstrip('/')}/{path}")
    return out.getvalue()


def shelve_programs(files: Mapping[str, bytes]) -> str:
    """Put files that belong together on the shelf; the path of their directory there. Blocks; run it in a thread."""
    content = b"".join(name.encode() + b"\0" + text for name, text in sorted(files.items()))
    folder = f"warm/{hashlib.sha256(content).hexdigest()[:24]}"
    for name, text in files.items():
        _put(shelf_dir() / folder / name, text)
    return folder


def _shelve_script(script: Path) -> tuple[Needs, str, str]:
    needs = needs_of(script)
    text = script.read_bytes()
    digest = hashlib.sha256(text).hexdigest()
    name = f"scripts/{digest[:24]}/{script.name}"
    _put(shelf_dir() / name, text)
    return needs, name, digest


def _put(place: Path, text: bytes) -> None:
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
        fresh.write_bytes(text)
        fresh.replace(place)


async def _build(needs: Needs, interpreter: Interpreter, place: Path) -> None:
    try:
        async with asyncio.timeout(DEADLINE_S), locked(place):
            if not await in_thread(Path(place, _MARKER).exists):
                await in_thread(shutil.rmtree, place, ignore_errors=True)
                await run_uv(*_install(interpreter, place), "--", *needs.dependencies)
                await in_thread(Path(place, _MARKER).touch)
    except TimeoutError as error:
        raise RuntimeFault(f"no packages for a script within {DEADLINE_S:g} s ({place})") from error
    except OSError as error:
        raise RuntimeFault(f"could not install packages into {place}: {error}") from error


def _install(interpreter: Interpreter, place: Path) -> list[str]:
    words = ["pip", "install", "--no-config", "--target", str(place), "--python", sys.executable]
    words += ["--python-version", interpreter.minor, "--python-platform", interpreter.platform]
    return words + (["--compile-bytecode"] if interpreter.version[:2] == sys.version_info[:2] else [])


def _key(needs: Needs, interpreter: Interpreter) -> str:
    parts = [*sorted(needs.dependencies), interpreter.minor, interpreter.platform]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]
