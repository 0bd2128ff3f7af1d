"""Freeing what is left of a sandbox whose owner was killed.

Its processes died with the owner: the warden ends when the owner's channel closes, and what the warden began ends with
the warden. Control groups may stay, with a process in them that was just on its way.
"""

from __future__ import annotations

from rollwright.runtimes.local.threads import in_thread

from . import cgroups

SEPARATOR = ":"


async def sweep(clues: dict[str, str]) -> None:
    """Kill what is in the groups that the clues name, and remove them. OSError where one stays."""
    await in_thread(_free, [path for path in clues.get("groups", "").split(SEPARATOR) if path])


def _free(groups: list[str]) -> None:
    for group in groups:
        cgroups.end(group)
    cgroups.remove(groups)
