"""The Model Context Protocol, as far as a server of tools speaks it: JSON-RPC bytes in, JSON-RPC bytes out. There is no
socket in here, and nothing is remembered between two requests, so one server does for all rollouts.

Spoken: initialize, ping, tools/list, tools/call, and notifications, which are heard and not answered. Not spoken:
resources, prompts, sampling, streams that the server begins. Revisions without a handshake are declined in the way that
lets a client fall back to one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec
import orjson

from rollwright.wire import RolloutError, Text, ToolCall, ToolResult, ToolSpec

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Revisions of the protocol that we speak, oldest first."""
MAX_BATCH = 64
"""Requests that may come in one body."""

NOT_JSON, INVALID_REQUEST, UNKNOWN_METHOD, INVALID_PARAMS, FAILED = -32700, -32600, -32601, -32602, -32603
UNKNOWN_VERSION = -32022


class Tools(Protocol):
    """What is served."""

    @property
    def specs(self) -> Sequence[ToolSpec]: ...
    async def call(self, call: ToolCall) -> ToolResult: ...
    def image_text(self, sha256: str, media_type: str) -> str:
        """The base64 of an image that a result shows."""
        ...


class Told(msgspec.Struct, frozen=True):
    """What goes back over HTTP."""

    status: int
    body: bytes = b""


class Wrong(Exception):
    """One request that is answered with an error. Never leaves this file."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class McpServer:
    """Answers the requests of one rollout's program."""

    def __init__(self, tools: Tools, name: str, version: str) -> None:
        self._tools = tools
        self._info = {"name": name, "version": version}
        self._methods: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            "initialize": self._initialize,
            "ping": self._ping,
            "tools/list": self._list,
            "tools/call": self._call,
        }

    async def answer(self, body: bytes, version: str = "") -> Told:
        """The answer to one body; `version` is what the header of the same meaning says."""
        try:
            asked = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            return Told(400, _error(None, Wrong(NOT_JSON, f"the body does not parse: {error}")))
        if version and version not in VERSIONS:
            data = {"supported": VERSIONS, "requested": version[:40]}
            wrong = Wrong(UNKNOWN_VERSION, f"this revision of the protocol is not spoken: {version[:40]!r}", data)
            return Told(400, _error(_id_of(asked), wrong))
        if isinstance(asked, list):
            return await self._answer_all(asked)
        answer = await self._answer_one(asked)
        if answer is None:
            return Told(202)
        # A request that is none has no id that its sender could go by, so the status tells it too.
        return Told(400 if _id_of(asked) is None else 200, answer)

    async def _answer_all(self, asked: list[Any]) -> Told:
        if not 0 < len(asked) <= MAX_BATCH:
            return Told(400, _error(None, Wrong(INVALID_REQUEST, f"a batch has 1 to {MAX_BATCH} requests")))
        answers = [answer for one in asked if (answer := await self._answer_one(one)) is not None]
        return Told(200, b"[%b]" % b",".join(answers)) if answers else Told(202)

    async def _answer_one(self, asked: Any) -> bytes | None:
        """None for what wants no answer."""
        try:
            method = _method_of(asked)
            if method is None:
                return None
            handler = self._methods.get(method)
            if handler is None:
                raise Wrong(UNKNOWN_METHOD, f"there is no method {method[:100]!r}")
            params = asked.get("params", {})
            if not isinstance(params, dict):
                raise Wrong(INVALID_PARAMS, "params is an object")
            return orjson.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": await handler(params)})
        except Wrong as wrong:
            return _error(_id_of(asked), wrong)

    async def _initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        wanted = params.get("protocolVersion")
        if not isinstance(wanted, str):
            raise Wrong(INVALID_PARAMS, "protocolVersion is missing or not text")
        version = wanted if wanted in VERSIONS else VERSIONS[-1]
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": self._info}

    async def _ping(self, params: dict[str, Any]) -> dict[str, Any]:
        return {}

    async def _list(self, params: dict[str, Any]) -> dict[str, Any]:
        if params.get("cursor") is not None:
            raise Wrong(INVALID_PARAMS, "there is one page of tools, and it was given without a cursor")
        return {"tools": [_shown(spec) for spec in self._tools.specs]}

    async def _call(self, params: dict[str, Any]) -> dict[str, Any]:
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str):
            raise Wrong(INVALID_PARAMS, "name is missing or not text")
        if arguments is not None and not isinstance(arguments, dict):
            raise Wrong(INVALID_PARAMS, "arguments is an object")
        if all(spec.name != name for spec in self._tools.specs):
            raise Wrong(INVALID_PARAMS, f"there is no tool {name[:100]!r}")
        try:
            result = await self._tools.call(ToolCall("mcp", name, orjson.dumps(arguments or {}).decode()))
            content = [self._content(part) for part in result.content]
        except RolloutError as error:
            raise Wrong(FAILED, _speakable(str(error))) from error
        return {"content": content, "isError": result.is_error}

    def _content(self, part: Any) -> dict[str, Any]:
        if isinstance(part, Text):
            return {"type": "text", "text": _speakable(part.text)}
        data = self._tools.image_text(part.sha256, part.media_type)
        return {"type": "image", "data": data, "mimeType": part.media_type}


def _speakable(text: str) -> str:
    """Half characters, which a tool may read from anywhere, do not go over the wire."""
    return text.encode("utf-8", "replace").decode()


def _shown(spec: ToolSpec) -> dict[str, Any]:
    # A schema without a type is one of an object here, and the protocol wants that said.
    return {"name": spec.name, "description": spec.description, "inputSchema": {"type": "object", **spec.parameters}}


def _method_of(asked: Any) -> str | None:
    """The method of a request; None for a notification, and for an answer, since nothing was asked of the client."""
    if not isinstance(asked, dict) or asked.get("jsonrpc") != "2.0":
        raise Wrong(INVALID_REQUEST, 'a request is an object with "jsonrpc": "2.0"')
    method = asked.get("method")
    if method is None and ("result" in asked or "error" in asked):
        return None
    if not isinstance(method, str):
        raise Wrong(INVALID_REQUEST, "method is missing or not text")
    if "id" not in asked:
        return None
    if _id_of(asked) is None:
        raise Wrong(INVALID_REQUEST, "id is a text or a whole number")
    return method


def _id_of(asked: Any) -> str | int | None:
    said = asked.get("id") if isinstance(asked, dict) else None
    return said if isinstance(said, str | int) and not isinstance(said, bool) else None


def _error(number: str | int | None, wrong: Wrong) -> bytes:
    error = {"code": wrong.code, "message": str(wrong)}
    if wrong.data is not None:
        error["data"] = wrong.data
    return orjson.dumps({"jsonrpc": "2.0", "id": number, "error": error})
