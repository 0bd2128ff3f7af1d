"""Tools of an MCP server that others run, offered to all rollouts of an environment (extra `mcp`). There is one
connection, made when the environment is opened; what the server keeps, it keeps for all rollouts together."""

from __future__ import annotations

import asyncio
import importlib
import logging
import shlex
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from rollwright.wire import (
    Image,
    Message,
    Text,
    ToolCall,
    ToolError,
    ToolResult,
    ToolSpec,
    UsageError,
    WireError,
    tool_result,
)

from .threads import HOOK_THREADS
from .tools import Gallery
from .toolset import Toolset

log = logging.getLogger("rollwright.tasks")

_CLOSE_S = 20.0


class McpToolset(Toolset):
    """The tools of the server that `command` starts, or of the one at `url`."""

    needs_runtime = False

    def __init__(
        self,
        command: str | Sequence[str] = "",
        *,
        url: str = "",
        env: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        prefix: str = "",
        call_timeout_s: float = 120.0,
    ) -> None:
        if bool(command) == bool(url):
            raise UsageError("an McpToolset has either a command or a url")
        self._command = shlex.split(command) if isinstance(command, str) else list(command)
        self._url = url
        self._env = dict(env or {})
        self._headers = dict(headers or {})
        self._prefix = prefix
        self._call_timeout_s = call_timeout_s
        self._specs: tuple[ToolSpec, ...] = ()
        self._client: Any = None
        self._over = asyncio.Event()
        self._connection: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = f"{len(self._specs)} tools" if self._client is not None else "not connected"
        return f"<McpToolset {self._name}: {state}>"

    @property
    def _name(self) -> str:
        return self._url or self._command[0]

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return self._specs

    async def open(self) -> None:
        # Importing takes seconds on a busy machine.
        await HOOK_THREADS.run(_sdk)
        self._over.clear()
        ready = asyncio.get_running_loop().create_future()
        # The SDK's connection must be closed by the task that opened it, so it has a task of its own.
        self._connection = asyncio.create_task(self._connected(ready), name=f"mcp {self._name}")
        await ready

    async def close(self) -> None:
        self._over.set()
        connection, self._connection = self._connection, None
        if connection is not None:
            await asyncio.wait({connection}, timeout=_CLOSE_S)
            connection.cancel()
            await asyncio.wait({connection}, timeout=_CLOSE_S)

    async def call(self, call: ToolCall, supplies: Mapping[str, Any], gallery: Gallery) -> Message:
        if self._client is None:
            raise ToolError(f"the MCP server {self._name} is not connected any more")
        try:
            arguments = msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            return tool_result(call.id, f"The arguments of {call.name} are not a JSON object: {error}", is_error=True)
        try:
            async with asyncio.timeout(self._call_timeout_s):
                result = await self._client.call_tool(call.name.removeprefix(self._prefix), arguments)
        except Exception as error:  # The border to the SDK, which raises errors of several libraries.
            raise ToolError(f"{call.name} of the MCP server {self._name} failed: {_words(error)}") from error
        return Message("tool", (ToolResult(call.id, _parts(result.content, gallery), bool(result.is_error)),))

    async def _connected(self, ready: asyncio.Future[None]) -> None:
        try:
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(await self._dial(stack))
                self._specs = await self._listed(client)
                self._client = client
                ready.set_result(None)
                await self._over.wait()
        except Exception as error:  # The border to the SDK.
            if ready.done():
                log.warning("the MCP server %s was lost: %s", self._name, _words(error))
            else:
                ready.set_exception(UsageError(f"the MCP server {self._name} does not answer: {_words(error)}"))
        finally:
            self._client = None
            if not ready.done():
                ready.cancel()

    async def _dial(self, stack: AsyncExitStack) -> Any:
        sdk = _sdk()
        if self._url:
            http = importlib.import_module("mcp.client.streamable_http")
            client = await stack.enter_async_context(http.create_mcp_http_client(headers=self._headers))
            return sdk.Client(http.streamable_http_client(self._url, http_client=client))
        program, *words = self._command
        return sdk.Client(sdk.StdioServerParameters(command=program, args=words, env=self._env))

    async def _listed(self, client: Any) -> tuple[ToolSpec, ...]:
        specs: list[ToolSpec] = []
        cursor = None
        while True:
            page = await client.list_tools(cursor=cursor)
            specs += [
                ToolSpec(self._prefix + tool.name, tool.description or "", tool.input_schema) for tool in page.tools
            ]
            cursor = page.next_cursor
            if not cursor:
                return tuple(specs)


def _sdk() -> Any:
    try:
        mcp = importlib.import_module("mcp")
    except ImportError as error:
        raise UsageError("MCP servers need the extra 'mcp': pip install 'rollwright[mcp]'") from error
    if not hasattr(mcp, "Client"):
        raise UsageError("the installed mcp package is older than 2.0: pip install 'rollwright[mcp]'")
    return mcp


def _parts(content: Sequence[Any], gallery: Gallery) -> tuple[Text | Image, ...]:
    """Text and images as they are; anything else as the JSON that it came in."""
    parts: list[Text | Image] = []
    for block in content:
        if block.type == "text":
            parts.append(Text(block.text))
        elif block.type == "image":
            parts.append(_image(block, gallery))
        else:
            parts.append(Text(block.model_dump_json(by_alias=True, exclude_none=True)))
    return tuple(parts) or (Text(""),)


def _image(block: Any, gallery: Gallery) -> Image:
    try:
        return gallery.put(msgspec.convert(block.data, bytes), block.mime_type)
    except (WireError, msgspec.ValidationError) as error:
        raise ToolError(f"an MCP server sent an image that is none: {error}") from error


def _words(error: BaseException) -> str:
    """One line, from inside the groups that task groups wrap errors in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
