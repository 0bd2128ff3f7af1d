"""Fetch agents ahead of time: `python -m rollwright.harnesses.install codex claude-code ...`.

Prints where each one lies. Exit 0 fine, 1 where one cannot be had, 2 for a wrong command.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rollwright.runtimes.provision import find_interpreter, provision
from rollwright.wire import RuntimeFault, UsageError

from . import bash, mini_swe
from .agents import AgentHarness
from .claude_code import ClaudeCodeHarness
from .codex import CodexHarness
from .opencode import OpenCodeHarness


class Part(NamedTuple):
    """What has to be on this host before a harness runs."""

    fetch: Callable[[], Awaitable[Path]]
    find: Callable[[], Path | None]


def _script(path: Path) -> Part:
    return Part(partial(provision, path), partial(find_interpreter, path))


def _program(agent: type[AgentHarness]) -> Part:
    return Part(agent.install, agent.installed)


PARTS: dict[str, Part] = {
    "bash": _script(bash.SCRIPT),
    "codex": _program(CodexHarness),
    "claude-code": _program(ClaudeCodeHarness),
    "opencode": _program(OpenCodeHarness),
    "mini-swe-agent": _script(mini_swe.SCRIPT),
}

_USAGE = f"usage: python -m rollwright.harnesses.install NAME...   with {', '.join(PARTS)}, or all"


async def install(names: list[str]) -> int:
    """How many could not be had."""
    missing = 0
    for name in names:
        try:
            print(name, await PARTS[name].fetch(), flush=True)
        except (RuntimeFault, UsageError) as error:
            print(f"Error: {name} cannot be had: {error}", file=sys.stderr)
            missing += 1
    return missing


def main(words: list[str]) -> int:
    if words in (["-h"], ["--help"]):
        print(_USAGE)
        return 0
    names = list(PARTS) if words == ["all"] else words
    if not names or any(name not in PARTS for name in names):
        print(_USAGE, file=sys.stderr)
        return 2
    return 1 if asyncio.run(install(names)) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
