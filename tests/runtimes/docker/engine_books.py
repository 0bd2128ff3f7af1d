"""What the engine of the tests has, and the name of the image that it is given."""

import json

from rollwright.runtimes.docker.api import Engine, address_of

IMAGE = "rollwright-test:1"


async def containers(place, label):
    """Ids of all containers with this label that the engine has, running or not."""
    engine = Engine(address_of(place))
    try:
        filters = json.dumps({"label": [label]})
        found = await engine.call("GET", "/containers/json", query={"all": "1", "filters": filters})
        return [one["Id"] for one in found.value]
    finally:
        await engine.close()


async def networks(place):
    """Names of all networks of boxes that the engine has."""
    engine = Engine(address_of(place))
    try:
        query = {"filters": json.dumps({"label": ["rollwright.box"]})}
        return [one["Name"] for one in (await engine.call("GET", "/networks", query=query)).value]
    finally:
        await engine.close()
