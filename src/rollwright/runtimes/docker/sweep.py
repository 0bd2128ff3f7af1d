"""Freeing the containers that a killed owner left behind."""

from __future__ import annotations

import shutil

from rollwright.runtimes.local.threads import in_thread

from .api import Engine, address_of
from .containers import freed


async def sweep(clues: dict[str, str]) -> None:
    """Free what the journal's clues lead to: everything with the label of the box, and its directory of sockets."""
    engine = Engine(address_of(clues["engine"]))
    try:
        await freed(engine, clues["name"])
    finally:
        await engine.close()
    if clues.get("doors"):
        await in_thread(shutil.rmtree, clues["doors"], ignore_errors=True)
