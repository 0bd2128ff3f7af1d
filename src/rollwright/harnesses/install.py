"""Fetch agents ahead of time: `python -m rollwright.harnesses.install codex claude-code ...`.

Prints where each one lies. Exit 0 fine, 1 where one cannot be had, 2 for a wrong command.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from rollwright.runtimes.provision import provision
from rollwright.wire import RuntimeFault, UsageError

from . import bash, mini_swe
from .claude_code import ClaudeCodeHarness
from .codex import CodexHarness
from .opencode import OpenCodeHarness


async def _interpreter(script: Path) -> str:
    return str(await provision(script))


AGENTS: dict[str, Callable[[], Awaitable[str]]] = {
    "bash": lambda: _interpreter(bash.SCRIPT),
    "codex": CodexHarness.install,
    "claude-code": ClaudeCodeHarness.install,
    "opencode": OpenCodeHarness.install,
    "mini-swe-agent": lambda: _interpreter(mini_swe.SCRIPT),
}
"""What has to be there before a harness runs."""

_USAGE = f"usage: python -m rollwright.harnesses.install NAME...   with {', '.join(AGENTS)}, or all"


async def install_all(names: list[str]) -> int:
    """How many could not be had."""
    missing = 0
    for name in names:
        try:
            print(name, await AGENTS[name](), flush=True)
        except (RuntimeFault, UsageError) as error:
            print(f"Error: {name} cannot be had: {error}", file=sys.stderr)
            missing += 1
    return missing


def main(words: list[str]) -> int:
    if words in (["-h"], ["--help"]):
        print(_USAGE)
        return 0
    names = list(AGENTS) if words == ["all"] else words
    if not names or any(name not in AGENTS for name in names):
        print(_USAGE, file=sys.stderr)
        return 2
    return 1 if asyncio.run(install_all(names)) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
