"""Programs from npm, fetched once per host at a pinned version and kept in the cache directory.

No script of a package is run, here or by npm: what is used is a file that the package brings, and its version is read
from the package itself, since npm may choose another release than the one that was meant. Programs run in boxes only.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

from rollwright.runtimes.local.threads import in_thread
from rollwright.wire import RuntimeFault, UsageError

from .building import DEADLINE_S, cache_dir, is_marked, locked, mark_ready, run_builder
from .flights import Flights

_flights: Flights[Path] = Flights()


@dataclass(frozen=True, slots=True)
class NpmProgram:
    """A program inside a package of npm."""

    package: str
    """Its name in the registry, without a version."""
    version: str
    """The one version that is meant."""
    file: str
    """Where the program lies in the package; `*` stands for any one name."""

    @property
    def place(self) -> Path:
        """Where it is kept."""
        name = f"{self.package}-{self.version}".replace("@", "").replace("/", "-")
        return cache_dir() / "npm" / name

    @property
    def package_dir(self) -> Path:
        """The package itself, with its program and what that needs."""
        return self.place / "node_modules" / self.package


def host_platform() -> str:
    """The platform of this host as packages of npm name it; empty where they have no name for it."""
    return npm_platform(platform.system(), platform.machine())


def npm_platform(system: str, machine: str) -> str:
    """The same of any machine, by what its `uname -sm` says."""
    system = {"Linux": "linux", "Darwin": "darwin"}.get(system, "")
    machine = {"x86_64": "x64", "AMD64": "x64", "aarch64": "arm64", "arm64": "arm64"}.get(machine, "")
    return f"{system}-{machine}" if system and machine else ""


async def provision_npm(program: NpmProgram, *, timeout_s: float = DEADLINE_S) -> Path:
    """The file of `program` on this host, fetched if need be. Callers at the same time share the work."""
    found = await in_thread(find_npm, program)
    if found is not None:
        return found
    return await _flights.join(str(program.place), lambda: _provision(program, timeout_s))


async def _provision(program: NpmProgram, timeout_s: float) -> Path:
    place = program.place
    try:
        async with asyncio.timeout(timeout_s), locked(place):
            found = await in_thread(find_npm, program)
            if found is not None:
                return found
            await in_thread(shutil.rmtree, place, ignore_errors=True)
            await run_builder("npm", _npm(program), f"fetching {program.package} {program.version}")
            found = await in_thread(_checked, program)
            await in_thread(mark_ready, place)
            return found
    except TimeoutError as error:
        raise RuntimeFault(f"{program.package} {program.version} was not fetched within {timeout_s:g} s") from error
    except OSError as error:
        raise RuntimeFault(f"{program.package} could not be kept in {place}: {error}") from error


def _npm(program: NpmProgram) -> list[str]:
    npm = shutil.which("npm")
    if npm is None:
        raise UsageError(f"fetching {program.package} needs npm, which is not on the PATH; install Node.js first")
    words = [npm, "install", "--prefix", str(program.place), "--no-audit", "--no-fund", "--no-save"]
    words += ["--ignore-scripts", "--omit=dev", "--omit=optional", "--loglevel=error", "--"]
    return [*words, f"{program.package}@{program.version}"]


def find_npm(program: NpmProgram) -> Path | None:
    """The program, if it was fetched to its end and is still there."""
    return _file(program) if is_marked(program.place) else None


def _checked(program: NpmProgram) -> Path:
    """The program that was just fetched, of the version that was meant."""
    manifest = program.package_dir / "package.json"
    try:
        version = json.loads(manifest.read_text(encoding="utf-8")).get("version")
    except (OSError, ValueError) as error:
        raise RuntimeFault(f"npm brought no {program.package}: {error}") from error
    if version != program.version:
        raise RuntimeFault(f"npm brought {program.package} {version} instead of {program.version}")
    found = _file(program)
    if found is None:
        raise RuntimeFault(f"{program.package} {version} has no program {program.file!r}")
    return found


def _file(program: NpmProgram) -> Path | None:
    found = sorted(path for path in program.package_dir.glob(program.file) if os.access(path, os.X_OK))
    return found[0] if found else None
