"""Agents that others publish as programs on npm: fetched at a pinned version once per host, run headless in the box.

An agent's own file says which package it is and how it is started. Everything that it needs to know travels in words
and variables; the prompt comes on stdin and the key in the environment, so neither can be seen in a list of processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rollwright.runtimes import ExecResult, Runtime
from rollwright.runtimes.provision import NpmProgram, find_npm, host_platform, provision_npm
from rollwright.tasks import Task
from rollwright.wire import HarnessError, RuntimeFault, UsageError

from .bringing import brought
from .contract import Door
from .programs import FOREVER_S, HarnessConfig, Outcome, ProgramHarness, asked, trouble_of

OUTPUT_LIMIT = 1 << 20


class AgentConfig(HarnessConfig, frozen=True, kw_only=True):
    """What every published agent has."""

    program: str = ""
    """Its program inside the box, where the box has it already. Empty fetches the pinned version once per host, and
    brings it into boxes that cannot read this host's cache directory."""
    arguments: tuple[str, ...] = ()
    """Further words of its command line."""
    env: dict[str, str] = {}
    """Further variables of its environment."""


@dataclass(frozen=True, slots=True)
class Start:
    """How an agent is started."""

    words: tuple[str, ...]
    """Behind the program."""
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: str = ""


class AgentHarness(ProgramHarness):
    """One kind of agent. A subclass says what it is and how it starts."""

    version = ""
    """The one that was tried and is fetched."""

    def __init__(self, config: AgentConfig) -> None:
        self.config = config

    @classmethod
    def npm_program(cls, platform: str) -> NpmProgram:
        """The package that has the program for `platform`."""
        raise NotImplementedError

    def start(self, door: Door, model: str, system: str, prompt: str) -> Start:
        raise NotImplementedError

    async def equip(self, runtime: Runtime) -> Mapping[str, str]:
        """Bring what else it needs into the box. Variables that tell it where that is."""
        return {}

    def trouble(self, result: ExecResult) -> str:
        """What went wrong; empty if it did its work."""
        return trouble_of(result)

    @classmethod
    async def install(cls) -> Path:
        """Where the program lies on this host, fetched if need be."""
        platform = host_platform()
        if not platform:
            raise UsageError(f"{cls.kind} is not published for this platform; name a program with harness.program")
        return await provision_npm(cls.npm_program(platform))

    @classmethod
    def installed(cls) -> Path | None:
        """Where it lies, if it is fetched already. Blocks on the disk."""
        platform = host_platform()
        return find_npm(cls.npm_program(platform)) if platform else None

    async def drive(self, runtime: Runtime, door: Door, model: str, task: Task) -> Outcome:
        start = self.start(door, model, *asked(task))
        program, found = await self._ready(runtime)
        result = await runtime.run(
            [program, *start.words, *self.config.arguments],
            env={**start.env, **found, **self.config.env},
            stdin=start.stdin.encode(),
            timeout_s=FOREVER_S,
            output_limit=OUTPUT_LIMIT,
        )
        return Outcome(trouble=self.trouble(result))

    async def _ready(self, runtime: Runtime) -> tuple[str, Mapping[str, str]]:
        """Where the program lies inside the box, with all that it needs, and what it is told of that."""
        try:
            return self.config.program or await self._installed(runtime), await self.equip(runtime)
        except (RuntimeFault, UsageError) as error:
            raise HarnessError(f"{self.kind} {self.version} cannot be had in {runtime.name}: {error}") from error

    async def _installed(self, runtime: Runtime) -> str:
        if runtime.shows_cache:
            return str(await self.install())
        return await brought(runtime, self.npm_program)
