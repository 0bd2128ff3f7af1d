"""A stand-in for the vendor's servers: the part of its wire protocol that the SDK speaks for our operations.

Two gRPC services on loopback ports, as with the vendor: the control plane, and the command router that runs on the
worker and wants a token of its own. What runs behind them are real processes (modal_container.py). It has a thread and
a loop of its own, so the SDK meets it over sockets only. `fail` and `fail_after` make a call go wrong before or after
its work was done.
"""

import asyncio
import base64
import json
import secrets
import threading
import time
from collections import Counter, defaultdict
from contextlib import asynccontextmanager, suppress

from grpclib import GRPCError, Status
from grpclib.server import Server
from modal_proto import api_pb2
from modal_proto import task_command_router_pb2 as router_pb2
from modal_proto.api_grpc import ModalClientBase
from modal_proto.task_command_router_grpc import TaskCommandRouterBase

from runtimes.modal.modal_container import Container, Exec

TOKEN = ("ak-standin", "as-standin-secret")


def a_jwt(lasts_s=3600):
    claims = base64.urlsafe_b64encode(json.dumps({"exp": time.time() + lasts_s}).encode()).decode().rstrip("=")
    return f"{secrets.token_hex(4)}.{claims}.{secrets.token_hex(4)}"


class Sandbox:
    """One sandbox as the control plane knows it."""

    def __init__(self, definition, pass_lasts_s):
        self.id = f"sb-{secrets.token_hex(8)}"
        self.task_id = f"ta-{secrets.token_hex(8)}V"
        self.definition = definition
        self.jwt = a_jwt(pass_lasts_s)
        self.container = Container(self.id)
        self.result = asyncio.get_running_loop().create_future()
        self.starts = Counter()
        self._timers = {}

    async def open(self):
        await self.container.start(list(self.definition.entrypoint_args))
        self._arm("lifetime", self.definition.timeout_secs)
        self.touch()

    def touch(self):
        self._arm("idle", self.definition.idle_timeout_secs)

    def _arm(self, name, after_s):
        if name in self._timers:
            self._timers[name].cancel()
        if after_s:
            end = lambda: asyncio.ensure_future(self.end(api_pb2.GenericResult.GENERIC_STATUS_TIMEOUT))  # noqa: E731
            self._timers[name] = asyncio.get_running_loop().call_later(after_s, end)

    async def end(self, status):
        for timer in self._timers.values():
            timer.cancel()
        if not self.result.done():
            self.result.set_result(api_pb2.GenericResult(status=status))
            await self.container.close()

    @property
    def ended(self):
        return self.result.done()


def unary(method):
    """One request, one response, with the failures that a test ordered."""

    async def handler(self, stream):
        request = await stream.recv_message()
        await self.world.meet(method.__name__, stream)
        response = await method(self, request)
        await self.world.meet(f"after {method.__name__}", stream)
        await stream.send_message(response)

    return handler


class ControlPlane(ModalClientBase):
    def __init__(self, world):
        self.world = world

    @unary
    async def ClientHello(self, request):  # noqa: N802 - the names are the vendor's.
        return api_pb2.ClientHelloResponse(image_builder_version="2025.06")

    @unary
    async def AuthTokenGet(self, request):  # noqa: N802
        return api_pb2.AuthTokenGetResponse(token=a_jwt())

    @unary
    async def EnvironmentGetOrCreate(self, request):  # noqa: N802
        settings = api_pb2.EnvironmentSettings(image_builder_version="2025.06")
        metadata = api_pb2.EnvironmentMetadata(name="main", settings=settings)
        return api_pb2.EnvironmentGetOrCreateResponse(environment_id="en-1", metadata=metadata)

    @unary
    async def AppGetOrCreate(self, request):  # noqa: N802
        return api_pb2.AppGetOrCreateResponse(app_id=f"ap-{request.app_name}")

    @unary
    async def ImageGetOrCreate(self, request):  # noqa: N802
        self.world.images.append(list(request.image.dockerfile_commands))
        done = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS)
        return api_pb2.ImageGetOrCreateResponse(image_id=f"im-{len(self.world.images)}", result=done)

    @unary
    async def SandboxCreateV2(self, request):  # noqa: N802
        name = request.definition.name
        if self.world.named(name) is not None:
            raise GRPCError(Status.ALREADY_EXISTS, f"a sandbox named {name} runs already")
        sandbox = Sandbox(request.definition, self.world.pass_lasts_s)
        await sandbox.open()
        self.world.sandboxes[sandbox.id] = sandbox
        access = api_pb2.CommandRouterAccess(url=self.world.router_url, jwt=sandbox.jwt)
        return api_pb2.SandboxCreateV2Response(
            sandbox_id=sandbox.id, task_id=sandbox.task_id, command_router_access=access
        )

    @unary
    async def SandboxGetFromNameV2(self, request):  # noqa: N802
        sandbox = self.world.named(request.sandbox_name)
        if sandbox is None:
            raise GRPCError(Status.NOT_FOUND, f"no sandbox named {request.sandbox_name}")
        return api_pb2.SandboxGetFromNameResponse(sandbox_id=sandbox.id)

    @unary
    async def SandboxGetFromName(self, request):  # noqa: N802
        raise GRPCError(Status.NOT_FOUND, "there are no sandboxes of the older kind here")

    @unary
    async def SandboxGetTaskIdV2(self, request):  # noqa: N802
        sandbox = self.world.sandbox(request.sandbox_id)
        if sandbox.ended:
            return api_pb2.SandboxGetTaskIdResponse(task_result=sandbox.result.result())
        return api_pb2.SandboxGetTaskIdResponse(task_id=sandbox.task_id)

    @unary
    async def SandboxGetCommandRouterAccess(self, request):  # noqa: N802
        sandbox = self.world.sandbox(request.sandbox_id)
        if sandbox.ended:
            raise GRPCError(Status.FAILED_PRECONDITION, "the sandbox has ended")
        sandbox.jwt = a_jwt()
        return api_pb2.SandboxGetCommandRouterAccessResponse(url=self.world.router_url, jwt=sandbox.jwt)

    @unary
    async def SandboxWaitV2(self, request):  # noqa: N802
        sandbox = self.world.sandbox(request.sandbox_id)
        await asyncio.wait({sandbox.result}, timeout=request.timeout)
        return api_pb2.SandboxWaitResponse(result=sandbox.result.result() if sandbox.ended else None)

    @unary
    async def SandboxTerminateV2(self, request):  # noqa: N802
        await self.world.sandbox(request.sandbox_id).end(api_pb2.GenericResult.GENERIC_STATUS_TERMINATED)
        return api_pb2.SandboxTerminateResponse()

    @unary
    async def SandboxGetTunnelsV2(self, request):  # noqa: N802
        sandbox = self.world.sandbox(request.sandbox_id)
        ports = [spec.port for spec in sandbox.definition.open_ports.ports]
        gates = [(port, await sandbox.container.tunnel(port)) for port in ports]
        return api_pb2.SandboxGetTunnelsResponse(
            tunnels=[api_pb2.TunnelData(host="127.0.0.1", port=gate, container_port=port) for port, gate in gates]
        )


class CommandRouter(TaskCommandRouterBase):
    def __init__(self, world):
        self.world = world

    @unary
    async def TaskExecStart(self, request):  # noqa: N802
        sandbox = self.world.task(request.task_id)
        sandbox.touch()
        # The id is the client's: a second request with it is the first one tried again.
        sandbox.starts[request.exec_id] += 1
        if request.exec_id not in sandbox.container.execs:
            env = dict(sandbox.container.environment)
            for source in request.secret_sources:
                env |= dict(source.env.contents)
            self.world.commands.append(list(request.command_args))
            command = Exec(sandbox.container, list(request.command_args), env, request.timeout_secs)
            sandbox.container.execs[request.exec_id] = command
        return router_pb2.TaskExecStartResponse()

    @unary
    async def TaskExecWait(self, request):  # noqa: N802
        command = self.world.command(request)
        code = await asyncio.shield(command.exited)
        self.world.task(request.task_id)
        return router_pb2.TaskExecWaitResponse(**({"signal": -code} if code < 0 else {"code": code}))

    @unary
    async def TaskExecStdinWrite(self, request):  # noqa: N802
        try:
            await self.world.command(request).feed(request.offset, request.data, request.eof)
        except (BrokenPipeError, ValueError) as error:
            raise GRPCError(Status.FAILED_PRECONDITION, "the program closed its standard input") from error
        return router_pb2.TaskExecStdinWriteResponse()

    async def TaskExecStdioRead(self, stream):  # noqa: N802
        request = await stream.recv_message()
        await self.world.meet("TaskExecStdioRead", stream)
        command = self.world.command(request)
        is_stdout = request.file_descriptor == router_pb2.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT
        async for chunk in (command.stdout if is_stdout else command.stderr).chunks(request.offset):
            await stream.send_message(router_pb2.TaskExecStdioReadResponse(data=chunk))


class StandIn:
    """`with StandIn() as world:` serves until the end of the block."""

    def __init__(self):
        self.sandboxes = {}
        self.pass_lasts_s = 3600
        self.images = []
        self.commands = []
        self.calls = Counter()
        self.metadata = {}
        self._ordered = defaultdict(list)
        self._holds = {}
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="modal stand-in")

    def __enter__(self):
        self._thread.start()
        assert self._up.wait(30)
        return self

    def __exit__(self, *exc):
        self.loop.call_soon_threadsafe(self._down.set)
        self._thread.join(60)
        assert not self._thread.is_alive()

    def fail(self, call, *statuses):
        """The next calls of this name fail before anything is done, one per status."""
        self._ordered[call] += statuses

    def fail_after(self, call, *statuses):
        """The next calls of this name do their work, and then fail."""
        self._ordered[f"after {call}"] += statuses

    @asynccontextmanager
    async def reached(self, call):
        """Wait, on the test's own loop, until a call of this name arrives, and hold it until the block ends."""
        arrived, go_on = threading.Event(), threading.Event()
        self._holds[call] = (arrived, go_on)
        try:
            assert await asyncio.to_thread(arrived.wait, 30), f"{call} was never made"
            yield
        finally:
            go_on.set()

    async def end(self, sandbox_id, status=api_pb2.GenericResult.GENERIC_STATUS_TERMINATED):
        """What the vendor does to a box when it likes to: called from the test's own loop."""
        work = asyncio.run_coroutine_threadsafe(self.sandboxes[sandbox_id].end(status), self.loop)
        await asyncio.wrap_future(work)

    def running(self):
        return [sandbox.id for sandbox in self.sandboxes.values() if not sandbox.ended]

    # --- for the services --------------------------------------------------------------------------------------------

    async def meet(self, call, stream):
        self.calls[call] += 1
        self.metadata[call] = dict(stream.metadata)
        if call.startswith("Task"):
            self._check_token(stream)
        if call in self._holds:
            arrived, go_on = self._holds.pop(call)
            arrived.set()
            await asyncio.to_thread(go_on.wait, 30)
        if self._ordered[call]:
            raise GRPCError(self._ordered[call].pop(0), f"ordered by a test ({call})")

    def _check_token(self, stream):
        bearer = stream.metadata.get("authorization", "")
        if bearer not in {f"Bearer {sandbox.jwt}" for sandbox in self.sandboxes.values()}:
            raise GRPCError(Status.UNAUTHENTICATED, "this token opens nothing")

    def named(self, name):
        return next((one for one in self.sandboxes.values() if one.definition.name == name and not one.ended), None)

    def sandbox(self, sandbox_id):
        if sandbox_id not in self.sandboxes:
            raise GRPCError(Status.NOT_FOUND, f"no sandbox {sandbox_id}")
        return self.sandboxes[sandbox_id]

    def task(self, task_id):
        for sandbox in self.sandboxes.values():
            if sandbox.task_id == task_id and not sandbox.ended:
                return sandbox
        raise GRPCError(Status.NOT_FOUND, f"no task {task_id} runs here")

    def command(self, request):
        command = self.task(request.task_id).container.execs.get(request.exec_id)
        if command is None:
            raise GRPCError(Status.NOT_FOUND, f"no exec {request.exec_id}")
        return command

    async def _serve(self):
        self.loop = asyncio.get_running_loop()
        self._down = asyncio.Event()
        control, router = _Server([_whole(ControlPlane)(self)]), _Server([_whole(CommandRouter)(self)])
        self.url, self.router_url = await _listen(control), await _listen(router)
        self._up.set()
        await self._down.wait()
        for sandbox in self.sandboxes.values():
            await sandbox.end(api_pb2.GenericResult.GENERIC_STATUS_TERMINATED)
        for server in (control, router):
            server.close()
            for connection in server.connections:
                connection.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(5):
                    await server.wait_closed()
        await asyncio.sleep(0.01)  # A transport that is closed lets go of its socket a turn of the loop later.


class _Server(Server):
    """Closing grpclib's own leaves the connections that clients keep open."""

    def __init__(self, handlers):
        super().__init__(handlers)
        self.connections = []

    def _protocol_factory(self):
        protocol = super()._protocol_factory()
        made = protocol.connection_made

        def connection_made(transport):
            self.connections.append(transport)
            made(transport)

        protocol.connection_made = connection_made
        return protocol


async def _listen(server):
    await server.start("127.0.0.1", 0)
    return f"http://127.0.0.1:{server._server.sockets[0].getsockname()[1]}"


def _whole(service):
    """The service with every call that we do not play answered as such."""

    def missing(name):
        async def handler(self, stream):
            raise GRPCError(Status.UNIMPLEMENTED, f"the stand-in does not play {name}")

        return handler

    return type(service.__name__, (service,), {name: missing(name) for name in service.__abstractmethods__})
