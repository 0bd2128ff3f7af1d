"""Freeing boxes whose owner is gone. The label is known before a box is created, so one whose id was never learned is
found by it; a box's network is found by its name in the same way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollwright.runtimes.remote import LinkBroken
from rollwright.wire import RuntimeFault, RuntimeLost

from . import sdk
from .generation import network_name

if TYPE_CHECKING:
    from prime_sandboxes import AsyncSandboxClient


async def sweep(clues: dict[str, str]) -> None:
    """Delete every box with the label in `clues`, the box with the id, and their networks. Idempotent."""
    team = clues.get("team", "")
    async with sdk.client_for_a_while() as client:
        ids = set(await sdk.labelled(client, clues["label"], team))
        if clues.get("id"):
            ids.add(clues["id"])
        for sandbox_id in ids:
            await sdk.delete(client, sandbox_id)
        for network_id in await _networks(client, team, {network_name(sandbox_id) for sandbox_id in ids}):
            await _delete_network(client, network_id)


async def _networks(client: AsyncSandboxClient, team: str, names: set[str]) -> list[str]:
    if not names:
        return []
    try:
        with sdk.told("listing networks"):
            found = await client.list_lan_networks(team or None)
    except LinkBroken as error:
        raise RuntimeFault(str(error)) from error
    return [network.id for network in found if network.name in names]


async def _delete_network(client: AsyncSandboxClient, network_id: str) -> None:
    try:
        with sdk.told(f"deleting network {network_id}"):
            await client.delete_lan_network(network_id)
    except RuntimeLost:
        return
    except LinkBroken as error:
        raise RuntimeFault(str(error)) from error
