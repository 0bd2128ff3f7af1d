"""Containers, networks and images of one box, asked of the engine. What runs inside of them is no business of this."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec

from rollwright.runtimes.provision.flights import Flights
from rollwright.wire import RuntimeFault

from .api import Engine
from .hunt import sees
from .spec import LABEL

PULL_S = 1800.0
_REMOVE_S = 60.0
_pulls: Flights[None] = Flights()


@dataclass(frozen=True, slots=True)
class Container:
    """A started container."""

    id: str
    image_id: str
    pid: int
    """Its first process as this process sees it; 0 where it does not."""
    address: str


async def made(engine: Engine, spec: dict[str, Any], name: str, *, pull: bool) -> Container:
    """Create and start a container; its image is fetched where the engine lacks it and `pull` says so."""
    reply = await engine.call("POST", "/containers/create", query={"name": name}, body=spec, allow=(404,))
    if reply.status == 404:
        if not pull:
            raise RuntimeFault(f"the engine has no image {spec['Image']!r}; pull it, or set pull")
        await _pulls.join(f"{engine.address} {spec['Image']}", lambda: _fetch(engine, spec["Image"]))
        reply = await engine.call("POST", "/containers/create", query={"name": name}, body=spec)
    container_id = str(reply.value["Id"])
    await engine.call("POST", f"/containers/{container_id}/start")
    return await _seen(engine, container_id)


async def is_running(engine: Engine, container_id: str) -> bool:
    reply = await engine.call("GET", f"/containers/{container_id}/json", allow=(404,))
    return reply.status == 200 and bool(reply.value["State"]["Running"])


async def removed(engine: Engine, container_id: str) -> None:
    """End a container with all that runs in it and free it. Fine where it is gone, or going."""
    query = {"force": "1", "v": "1"}
    reply = await engine.call("DELETE", f"/containers/{container_id}", query=query, allow=(404, 409))
    # 409: somebody else's removal of it is under way, and it is over when a look finds nothing.
    deadline = asyncio.get_running_loop().time() + _REMOVE_S
    while reply.status == 409:
        if (await engine.call("GET", f"/containers/{container_id}/json", allow=(404,))).status == 404:
            return
        if asyncio.get_running_loop().time() > deadline:
            raise RuntimeFault(f"container {container_id[:12]} is not removed within {_REMOVE_S:g} s")
        await asyncio.sleep(0.05)


async def freed(engine: Engine, name: str) -> None:
    """Free all that carries the label of box `name`. It asks the engine, so it finds also what nobody noted."""
    query = {"filters": msgspec.json.encode({"label": [f"{LABEL}={name}"]}).decode()}
    containers = (await engine.call("GET", "/containers/json", query={"all": "1", **query})).value
    await asyncio.gather(*(removed(engine, str(one["Id"])) for one in containers))
    for network in (await engine.call("GET", "/networks", query=query)).value or []:
        await engine.call("DELETE", f"/networks/{network['Id']}", allow=(404,))


async def _fetch(engine: Engine, image: str) -> None:
    query = {"fromImage": image}
    if "@" not in image and ":" not in image.rpartition("/")[2]:
        query["tag"] = "latest"  # Without one the engine would fetch every tag there is.
    try:
        reply = await engine.call("POST", "/images/create", query=query, timeout_s=PULL_S)
    except RuntimeFault as error:
        raise RuntimeFault(f"image {image!r} could not be fetched: {error}") from error
    # Progress comes as lines of JSON, with status 200 also where it ends in an error.
    lines = reply.value.splitlines() if isinstance(reply.value, str) else []
    if lines and '"error"' in lines[-1]:
        raise RuntimeFault(f"image {image!r} could not be fetched: {lines[-1]}")


async def _seen(engine: Engine, container_id: str) -> Container:
    told = (await engine.call("GET", f"/containers/{container_id}/json")).value
    state = told["State"]
    if not state["Running"]:
        raise RuntimeFault(
            f"the container ended at once with {state.get('ExitCode')}; does its image have sh and sleep?"
        )
    pid = int(state["Pid"])
    networks = (told.get("NetworkSettings") or {}).get("Networks") or {}
    addresses = [str(one.get("IPAddress") or "") for one in networks.values()]
    return Container(
        id=container_id,
        image_id=str(told["Image"]),
        pid=pid if sees(pid, container_id) else 0,
        address=next((address for address in addresses if address), ""),
    )
