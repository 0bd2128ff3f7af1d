"""The tools of a rollout over HTTP, for programs that hold its tools key. The protocol itself is in `mcp`."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from rollwright import __version__
from rollwright.harnesses import Session
from rollwright.tasks import Toolbox
from rollwright.wire import Image, ToolCall, ToolError, ToolResult, ToolSpec, WireError

from .bodies import Bodies
from .delivery import Answer
from .mcp import McpServer
from .rejection import FINAL, Rejected

TOOLS_PATH = "/rollout/mcp"


class Toolbench:
    """Where the program of one rollout calls tools. A tool that breaks fails the rollout, whatever its program does."""

    def __init__(self, tools: Toolbox, session: Session, bodies: Bodies) -> None:
        self._tools = tools
        self._session = session
        self._bodies = bodies
        self._server = McpServer(self, "rollwright", __version__)

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method != "POST":
            # Also how a client learns that no stream and no session begins here.
            raise Rejected(405, f"{TOOLS_PATH} takes POST", headers={**FINAL, "Allow": "POST"})
        told = await self._server.answer(
            await self._bodies.read(request), request.headers.get("mcp-protocol-version", "")
        )
        return Answer(told.body, told.status)

    @property
    def specs(self) -> Sequence[ToolSpec]:
        return self._tools.specs

    async def call(self, call: ToolCall) -> ToolResult:
        message = await self._session.judged(self._tools.call(call))
        (result,) = message.parts
        assert isinstance(result, ToolResult)
        return result

    def image_text(self, sha256: str, media_type: str) -> str:
        try:
            return self._session.images.get_text(Image(sha256, media_type)).decode("ascii")
        except WireError as error:
            raise ToolError(f"a tool shows an image that is not there: {error}") from error
