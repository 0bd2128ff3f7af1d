"""Make the interpreters of scripts ahead of time: `python -m rollwright.runtimes.provision SCRIPT...`.

Prints one interpreter per script on stdout. Exit 0 fine, 1 where one could not be made, 2 for a wrong command.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from rollwright.wire import RuntimeFault

from .interpreters import provision

_USAGE = "usage: python -m rollwright.runtimes.provision SCRIPT..."


async def _provision_all(scripts: list[str]) -> int:
    for script in scripts:
        try:
            print(await provision(Path(script)), flush=True)
        except RuntimeFault as error:
            print(f"Error: {error}", file=sys.stderr)
            return 1
    return 0


def main(words: list[str]) -> int:
    if words in (["-h"], ["--help"]):
        print(_USAGE)
        return 0
    if not words or words[0].startswith("-"):
        print(_USAGE, file=sys.stderr)
        return 2
    return asyncio.run(_provision_all(words))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
