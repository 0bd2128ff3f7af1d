"""The task state of a rollout over HTTP, for programs that hold its second key: GET tells it, POST merges into it."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from .bodies import Bodies
from .delivery import Answer
from .rejection import FINAL, Rejected

STATE_PATH = "/rollout/state"


async def serve_state(request: web.BaseRequest, state: dict[str, Any], bodies: Bodies) -> web.StreamResponse:
    if request.method == "POST":
        state.update(_read(await bodies.read(request)))
    elif request.method != "GET":
        raise Rejected(405, f"{STATE_PATH} takes GET and POST", headers=FINAL)
    return Answer(_written(state))


def _read(body: bytes) -> dict[str, Any]:
    try:
        change = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Rejected(400, f"the state does not parse: {error}", headers=FINAL) from error
    if not isinstance(change, dict):
        raise Rejected(400, "the state is a JSON object", headers=FINAL)
    return change


def _written(state: dict[str, Any]) -> bytes:
    """What is JSON in it. A task may keep other things there, which are its own."""
    told = {}
    for name, value in state.items():
        try:
            orjson.dumps(value)
        except TypeError:
            continue
        told[name] = value
    return orjson.dumps(told)
