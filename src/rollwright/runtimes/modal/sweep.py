"""Freeing sandboxes that a killed process left. The journal has the id, or only the name where the kill came between
the request and its answer."""

from __future__ import annotations

from rollwright.runtimes.journal import Clues

from .vendor import check_installed, shared_vendor


async def sweep(clues: Clues) -> None:
    check_installed()
    await shared_vendor().free(clues.get("app", ""), clues.get("name", ""), clues.get("sandbox", ""))
