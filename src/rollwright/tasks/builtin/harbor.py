"""Harbor task directories as a taskset: instruction.md, task.toml, environment/, tests/, solution/.

A task with an image (a Dockerfile in environment/, or `docker_image`) runs in a container of it, whatever box the run
has chosen otherwise. A task without one runs in any box; its scripts find their places by variables, and the files of
environment/ are put into its workspace. Tests enter the box only to be run. Not covered: compose files, steps, separate
verifiers, variables of the host in `env`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rollwright.runtimes import Runtime
from rollwright.tasks import Task, Taskset, reward
from rollwright.wire import UsageError

from .harborbox import OUTSIDE, Places, put_directory, read_reward, run_in_place

_WORKDIR = re.compile(r"^\s*WORKDIR\s+(/\S*)\s*$", re.IGNORECASE | re.MULTILINE)
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml")
_CARRY_S = 60.0
"""For bringing files in and a reward out, on top of a task's own time for its tests."""


class _Verifier(msgspec.Struct, frozen=True):
    timeout_sec: float = 600.0
    env: dict[str, str] = {}


class _Agent(msgspec.Struct, frozen=True):
    timeout_sec: float | None = None


class _Solution(msgspec.Struct, frozen=True):
    env: dict[str, str] = {}


class _Place(msgspec.Struct, frozen=True):
    docker_image: str = ""
    workdir: str = ""
    cpus: float | None = None
    memory_mb: int | None = None


class _Settings(msgspec.Struct, frozen=True):
    """What is read of task.toml. The rest is others' business."""

    verifier: _Verifier = _Verifier()
    agent: _Agent = _Agent()
    solution: _Solution = _Solution()
    environment: _Place = _Place()


class HarborTask(Task, frozen=True):
    """One directory."""

    directory: str
    settings: _Settings
    image: Mapping[str, Any]
    """Settings of the container that it needs; empty if any box will do."""

    def runtime_settings(self) -> Mapping[str, Any]:
        return self.image

    def limit_settings(self) -> Mapping[str, float]:
        limits = {"score_timeout_s": self.settings.verifier.timeout_sec + _CARRY_S}
        if self.settings.agent.timeout_sec is not None:
            limits["timeout_s"] = self.settings.agent.timeout_sec
        return limits

    async def setup(self, runtime: Runtime) -> None:
        if not self.image:
            await put_directory(runtime, Path(self.directory, "environment"), ".")

    async def solve(self, runtime: Runtime) -> None:
        """Run solution/solve.sh, as an agent that knows the answer."""
        places = await self._places(runtime)
        await put_directory(runtime, Path(self.directory, "solution"), places.solution, empty_first=True)
        timeout_s = self.settings.agent.timeout_sec or self.settings.verifier.timeout_sec
        await run_in_place(runtime, f"{places.solution}/solve.sh", places, self.settings.solution.env, timeout_s)

    @reward
    async def reward(self, runtime: Runtime) -> float:
        """What tests/test.sh says. Whatever lies in its places before is taken away first, so none is planted there."""
        places = await self._places(runtime)
        verifier = self.settings.verifier
        await put_directory(runtime, None, places.verifier, empty_first=True)
        await put_directory(runtime, Path(self.directory, "tests"), places.tests, empty_first=True)
        result = await run_in_place(runtime, f"{places.tests}/test.sh", places, verifier.env, verifier.timeout_sec)
        return await read_reward(runtime, places.verifier, result)

    async def _places(self, runtime: Runtime) -> Places:
        return OUTSIDE if self.image else await Places.below_workspace(runtime)


class Harbor(Taskset, frozen=True):
    """Harbor task directories."""

    path: str
    """A task directory, or a directory of them."""
    only: tuple[str, ...] = ()
    """Names of the directories to take; all if empty."""

    def tasks(self) -> Iterable[Task]:
        root = Path(self.path).resolve()
        if not root.is_dir():
            raise UsageError(f"there is no directory {self.path!r} with Harbor tasks")
        found = [root] if (root / "task.toml").is_file() else sorted(path.parent for path in root.glob("*/task.toml"))
        missing = set(self.only) - {directory.name for directory in found}
        if missing:
            raise UsageError(f"{self.path} has no task {', '.join(sorted(missing))}")
        for directory in found:
            if not self.only or directory.name in self.only:
                yield read_task(directory)


def read_task(directory: Path) -> HarborTask:
    """The task in `directory`; UsageError says what is wrong with it."""
    try:
        settings = msgspec.convert(tomllib.loads((directory / "task.toml").read_text()), _Settings)
        instruction = (directory / "instruction.md").read_text()
    except (OSError, UnicodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"Harbor task {directory.name!r} cannot be read: {error}") from error
    image = _image_of(directory, settings)
    _check(directory, settings, image)
    return HarborTask(id=directory.name, prompt=instruction, directory=str(directory), settings=settings, image=image)


def _image_of(directory: Path, settings: _Settings) -> dict[str, Any]:
    place, dockerfile = settings.environment, directory / "environment" / "Dockerfile"
    if place.docker_image:
        image: dict[str, Any] = {"kind": "docker", "image": place.docker_image}
    elif dockerfile.is_file():
        image = {"kind": "docker", "build": str(dockerfile.parent)}
    else:
        return {}
    if place.cpus is not None:
        image["cpus"] = place.cpus
    if place.memory_mb is not None:
        image["memory_mb"] = place.memory_mb
    stated = _WORKDIR.findall(dockerfile.read_text()) if dockerfile.is_file() else []
    image["workdir"] = place.workdir or (stated[-1] if stated else "/app")
    return image


def _check(directory: Path, settings: _Settings, image: Mapping[str, Any]) -> None:
    name, script = directory.name, directory / "tests" / "test.sh"
    if not script.is_file():
        raise UsageError(f"Harbor task {name!r} has no tests/test.sh")
    if any((directory / "environment" / compose).exists() for compose in _COMPOSE):
        raise UsageError(f"Harbor task {name!r} needs several containers (a compose file), which is not supported")
    if any("${" in value for value in (*settings.verifier.env.values(), *settings.solution.env.values())):
        raise UsageError(f"Harbor task {name!r} wants variables of this host in an env, which no box is given")
    if not image and "VERIFIER_DIR" not in script.read_text(errors="replace"):
        raise UsageError(
            f"Harbor task {name!r} has no image, and its tests/test.sh writes to fixed places; give it a Dockerfile, "
            f"or let it use $TESTS_DIR and $VERIFIER_DIR"
        )
