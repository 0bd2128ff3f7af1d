"""Freeing boxes whose owner is gone. The label is known before a box is created, so one whose id was never learned is
found by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollwright.runtimes.remote import LinkBroken
from rollwright.wire import RuntimeFault, RuntimeLost

from . import sdk

if TYPE_CHECKING:
    from prime_sandboxes import AsyncSandboxClient


async def sweep(clues: dict[str, str]) -> None:
    """Delete every box with the label in `clues`, the box with the id, and its network. Idempotent."""
    async with sdk.client_for_a_while() as client:
        ids = set(await sdk.labelled(client, clues["label"]))
        if clues.get("id"):
            ids.add(clues["id"])
        for sandbox_id in ids:
            await sdk.delete(client, sandbox_id)
        if clues.get("network"):
            await _delete_network(client, clues["network"])


async def _delete_network(client: AsyncSandboxClient, network_id: str) -> None:
    try:
        with sdk.told(f"deleting network {network_id}"):
            await client.delete_lan_network(network_id)
    except RuntimeLost:
        return
    except LinkBroken as error:
        raise RuntimeFault(str(error)) from error
