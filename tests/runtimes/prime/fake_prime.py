"""The vendor's side, written from what its SDK sends: the API that makes boxes, and the gateway into them.

A real server on loopback with real boxes (`nsbox.py`). Its faults are given by name: `faults["create"]` is a list of
what happens to the next requests of that name, each a status, a (status, headers) pair, or one of

    "cut"         the connection is cut before anything was done
    "cut after"   it is done, and the connection is cut before the answer
    "hang"        no answer until the server closes
"""

import asyncio
import datetime
import json
import signal
import socket
import struct
import time
import uuid
from contextlib import suppress

from aiohttp import web
from prime_sandboxes._proto.command_session import command_session_pb2 as pb

from runtimes.prime import nsbox

SERVICE = "command_session.CommandSession"
FAULT = web.RequestKey("fault", object) if hasattr(web, "RequestKey") else "fault"
"""Newer servers warn of a plain name, once in a process: the first request of all would fail."""


class Session:
    """One process in a box, with the events that it gave."""

    def __init__(self, process):
        self.process = process
        self.events = asyncio.Queue()
        self.inputs = set()
        self.end = None


class Sandbox:
    def __init__(self, request):
        self.id = f"sbx{uuid.uuid4().hex[:12]}"
        self.request = request
        self.status = "PENDING"
        self.reason = None
        self.box = nsbox.NsBox(self.id)
        self.sessions = {}
        self.used = self.began = time.monotonic()

    def told(self):
        now = datetime.datetime.now(datetime.UTC).isoformat()
        asked = self.request
        return {
            "id": self.id,
            "name": asked["name"],
            "dockerImage": asked["docker_image"],
            "status": self.status,
            "cpuCores": asked["cpu_cores"],
            "memoryGB": asked["memory_gb"],
            "diskSizeGB": asked["disk_size_gb"],
            "diskMountPath": "/",
            "gpuCount": asked["gpu_count"],
            "timeoutMinutes": asked["timeout_minutes"],
            "labels": asked["labels"],
            "createdAt": now,
            "updatedAt": now,
            "vm": True,
            "errorType": self.reason,
        }


class FakePrime:
    def __init__(self):
        self.key = f"key-{uuid.uuid4().hex}"
        self.sandboxes = {}
        self.networks = {}
        self.faults = {}
        self.counts = {}
        self.requests = []
        self.clock = time.monotonic
        self._by_key = {}
        self._closing = asyncio.Event()
        self._runner = None
        self.port = 0

    async def __aenter__(self):
        app = web.Application(client_max_size=1 << 28, middlewares=[self._front])
        api = "/api/v1/sandbox"
        app.router.add_post(api, self._create)
        app.router.add_get(api, self._list)
        app.router.add_post(f"{api}/status:batchGet", self._statuses)
        app.router.add_post(f"{api}/networks", self._make_network)
        app.router.add_get(f"{api}/networks", self._networks)
        app.router.add_get(f"{api}/networks/{{id}}", self._network)
        app.router.add_delete(f"{api}/networks/{{id}}", self._drop_network)
        app.router.add_put(f"{api}/networks/{{id}}/rules", self._rules)
        app.router.add_put(f"{api}/networks/{{id}}/members/{{box}}", self._member)
        app.router.add_get(f"{api}/{{id}}", self._get)
        app.router.add_delete(f"{api}/{{id}}", self._delete)
        app.router.add_post(f"{api}/{{id}}/auth", self._auth)
        app.router.add_get(f"{api}/{{id}}/error-context", self._context)
        app.router.add_post("/ns/{id}/upload", self._upload)
        app.router.add_post(f"/ns/{{id}}/{SERVICE}/{{method}}", self._session)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *exc):
        self._closing.set()
        for sandbox in list(self.sandboxes.values()):
            await self.end(sandbox.id)
        await self._runner.cleanup()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def running(self):
        return [sandbox.id for sandbox in self.sandboxes.values() if sandbox.status in ("PENDING", "RUNNING")]

    async def end(self, sandbox_id, status="TERMINATED", reason=None):
        """As the vendor ends a box: by its deadline, for its memory, or because it was asked to."""
        sandbox = self.sandboxes[sandbox_id]
        sandbox.status, sandbox.reason = status, reason
        await sandbox.box.stop()

    async def forget(self, sandbox_id):
        """Lose a box without a trace."""
        await self.end(sandbox_id)
        del self.sandboxes[sandbox_id]

    async def _past_deadlines(self):
        for sandbox in map(self.sandboxes.get, self.running()):
            idle = sandbox.request.get("idle_timeout_minutes")
            late = self.clock() - sandbox.began > sandbox.request["timeout_minutes"] * 60
            if late or (idle and self.clock() - sandbox.used > idle * 60):
                await self.end(sandbox.id, "TIMEOUT", "TIMEOUT")

    @web.middleware
    async def _front(self, request, handler):
        host = request.headers.get("Host", "")
        if "-" in host.partition(".")[0]:
            return await self._published(request, host)
        if request.headers.get("Authorization") not in (f"Bearer {self.key}", "Bearer gateway-token"):
            return web.json_response({"detail": "unauthorized"}, status=401)
        await self._past_deadlines()
        name = _name(request)
        self.counts[name] = self.counts.get(name, 0) + 1
        fault = self.faults[name].pop(0) if self.faults.get(name) else None
        if isinstance(fault, int | tuple):
            status, headers = fault if isinstance(fault, tuple) else (fault, {})
            return web.json_response({"detail": "a fault"}, status=status, headers=headers)
        if fault == "hang":
            await self._closing.wait()
        if fault == "cut":
            request.transport.abort()
        request[FAULT] = fault
        if fault in ("cut", "hang"):
            return web.Response(status=500)
        response = await handler(request)
        if fault == "cut after" and request.transport is not None:
            request.transport.abort()
        return response

    async def _create(self, request):
        asked = await request.json()
        self.requests.append(asked)
        key = asked["idempotency_key"]
        if key not in self._by_key:
            sandbox = self._by_key[key] = Sandbox(asked)
            sandbox.began = sandbox.used = self.clock()
            self.sandboxes[sandbox.id] = sandbox
            await sandbox.box.start()
            sandbox.status = "RUNNING"
        return web.json_response(self._by_key[key].told())

    async def _list(self, request):
        labels = request.query.getall("labels", [])
        found = [
            box.told() for box in self.sandboxes.values() if not labels or set(labels) & set(box.request["labels"])
        ]
        page = {"sandboxes": found, "total": len(found), "page": 1, "perPage": 50, "hasNext": False}
        return web.json_response(page)

    async def _statuses(self, request):
        statuses, errors = [], []
        for sandbox_id in (await request.json())["sandbox_ids"]:
            if sandbox_id in self.sandboxes:
                statuses.append({"sandbox_id": sandbox_id, "status": self.sandboxes[sandbox_id].status})
            else:
                errors.append({"sandbox_id": sandbox_id, "code": "NOT_FOUND", "message": "no such box"})
        return web.json_response({"statuses": statuses, "errors": errors})

    async def _get(self, request):
        return web.json_response(self._known(request).told())

    async def _delete(self, request):
        await self.end(self._known(request).id)
        return web.json_response({})

    async def _auth(self, request):
        sandbox = self._known(request)
        expires = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
        where = {"gateway_url": f"http://localhost:{self.port}", "user_ns": "ns", "job_id": sandbox.id}
        return web.json_response({**where, "token": "gateway-token", "expires_at": expires.isoformat()})

    async def _context(self, request):
        sandbox = self._known(request)
        return web.json_response({"status": sandbox.status, "errorType": sandbox.reason})

    def _known(self, request):
        sandbox = self.sandboxes.get(request.match_info["id"])
        if sandbox is None:
            raise web.HTTPNotFound(text=json.dumps({"detail": "no such box"}), content_type="application/json")
        return sandbox

    async def _upload(self, request):
        sandbox = self.sandboxes.get(request.match_info["id"])
        if sandbox is None or sandbox.status != "RUNNING":
            return web.json_response({"error": "sandbox_terminated"}, status=410)
        part = await (await request.multipart()).next()
        data = await part.read()
        process = await sandbox.box.spawn('cat > "$UPLOAD"', {"UPLOAD": request.query["path"]}, stdin=-1)
        await process.communicate(bytes(data))
        now = datetime.datetime.now(datetime.UTC).isoformat()
        told = {"success": True, "path": request.query["path"], "size": len(data), "timestamp": now}
        return web.json_response(told, status=200 if process.returncode == 0 else 500)

    async def _make_network(self, request):
        asked = await request.json()
        network = {"id": f"net{uuid.uuid4().hex[:8]}", "name": asked["name"], "rules": asked.get("rules", [])}
        network |= {"version": 1, "synced": True, "created_at": "2026-01-01T00:00:00Z", "members": []}
        self.networks[network["id"]] = network
        return web.json_response(network)

    async def _networks(self, request):
        return web.json_response({"networks": list(self.networks.values())})

    async def _network(self, request):
        return web.json_response(self._known_network(request))

    async def _drop_network(self, request):
        del self.networks[self._known_network(request)["id"]]
        return web.Response(status=204)

    async def _rules(self, request):
        network = self._known_network(request)
        network["rules"] = (await request.json())["rules"]
        return web.json_response(network)

    async def _member(self, request):
        member = {"sandbox_id": request.match_info["box"], "tags": [], "synced": True}
        self._known_network(request)["members"].append(member)
        return web.json_response(member)

    def _known_network(self, request):
        network = self.networks.get(request.match_info["id"])
        if network is None:
            raise web.HTTPNotFound(text=json.dumps({"detail": "no such network"}), content_type="application/json")
        return network

    async def _published(self, request, host):
        """A port of a box, where a rule publishes it."""
        port, _, sandbox_id = host.partition(".")[0].partition("-")
        sandbox = self.sandboxes.get(sandbox_id)
        open_ports = {
            open_port
            for network in self.networks.values()
            for rule in network["rules"]
            for open_port in rule["ports"]
            if rule["from"] == "internet" and any(one["sandbox_id"] == sandbox_id for one in network["members"])
        }
        if sandbox is None or int(port) not in open_ports:
            return web.Response(status=404)

        def ask():
            with socket.create_connection(("127.0.0.1", int(port)), timeout=10) as sock:
                sock.sendall(f"GET {request.path} HTTP/1.0\r\n\r\n".encode())
                return b"".join(iter(lambda: sock.recv(65536), b""))

        answer = await sandbox.box.in_network(ask)
        return web.Response(body=answer.partition(b"\r\n\r\n")[2])

    async def _session(self, request):
        body = await request.read()
        sandbox = self.sandboxes.get(request.match_info["id"])
        method = request.match_info["method"]
        if method in ("Start", "Connect"):
            return await self._stream(request, sandbox, method, body[5:])
        if sandbox is None or sandbox.status != "RUNNING":
            return web.json_response({"code": "not_found", "message": "no such box"}, status=404)
        if method == "SendInput":
            message = pb.SendInputRequest.FromString(body)
            session = sandbox.sessions.get(message.session.session_uuid)
            if session is None or session.end is not None:
                return web.json_response({"code": "not_found", "message": "no such session"}, status=404)
            if message.input_uuid not in session.inputs:
                session.inputs.add(message.input_uuid)
                with suppress(ConnectionError):
                    session.process.stdin.write(message.input.stdin)
                    await session.process.stdin.drain()
            return _proto(pb.SendInputResponse())
        message = pb.SendSignalRequest.FromString(body)
        session = sandbox.sessions.get(message.session.session_uuid)
        if session is not None and session.end is None:
            with suppress(ProcessLookupError):
                session.process.send_signal(signal.SIGKILL)
        return _proto(pb.SendSignalResponse())

    async def _stream(self, request, sandbox, method, body):
        response = web.StreamResponse(headers={"Content-Type": "application/connect+proto"})
        await response.prepare(request)
        if sandbox is None or sandbox.status != "RUNNING":
            await response.write(_frame(b'{"error":{"code":"not_found","message":"no such box"}}', 2))
            return response
        sandbox.used = self.clock()
        message = getattr(pb, f"{method}Request").FromString(body)
        session = await (self._begin(sandbox, message) if method == "Start" else self._attach(sandbox, message))
        if request[FAULT] == "cut after":
            await session.process.wait()
            request.transport.abort()
            return response
        with suppress(ConnectionError):
            await self._carry(session, response, getattr(pb, f"{method}Response"))
        return response

    async def _begin(self, sandbox, message):
        if message.session_uuid and message.session_uuid in sandbox.sessions:
            return sandbox.sessions[message.session_uuid]
        self.counts["spawned"] = self.counts.get("spawned", 0) + 1
        stdin = asyncio.subprocess.PIPE if message.stdin else asyncio.subprocess.DEVNULL
        process = await sandbox.box.spawn(
            message.command.args[1], dict(message.command.envs), stdin=stdin, stdout=-1, stderr=-1
        )
        session = Session(process)
        sandbox.sessions[message.session_uuid or uuid.uuid4().hex] = session
        session.task = asyncio.create_task(self._listen(sandbox, session))
        return session

    async def _attach(self, sandbox, message):
        return sandbox.sessions[message.session.session_uuid]

    async def _listen(self, sandbox, session):
        async def pump(stream, name):
            while piece := await stream.read(65536):
                session.events.put_nowait({"data": pb.CommandSessionEvent.DataEvent(**{name: piece})})

        await asyncio.gather(pump(session.process.stdout, "stdout"), pump(session.process.stderr, "stderr"))
        session.end = await session.process.wait()
        session.process._transport.close()
        if sandbox.status == "RUNNING":
            session.events.put_nowait({"end": pb.CommandSessionEvent.EndEvent(exit_code=session.end, exited=True)})
        else:
            session.events.put_nowait(None)
        sandbox.used = self.clock()

    async def _carry(self, session, response, kind):
        start = pb.CommandSessionEvent.StartEvent(pid=session.process.pid)
        event = {"start": start}
        while event is not None:
            told = kind(event=pb.CommandSessionEvent(**event))
            await response.write(_frame(told.SerializeToString(), 0))
            if "end" in event:
                await response.write(_frame(b"{}", 2))
                return
            event = await session.events.get()
        await response.write(_frame(b'{"error":{"code":"not_found","message":"the box has ended"}}', 2))


def _frame(body, flags):
    return struct.pack(">BI", flags, len(body)) + body


def _proto(message):
    return web.Response(body=message.SerializeToString(), content_type="application/proto")


def _name(request):
    path = request.path
    if path == "/api/v1/sandbox":
        return "create" if request.method == "POST" else "list"
    if path.startswith("/ns/"):
        return path.rpartition("/")[2].lower()
    return "delete" if request.method == "DELETE" else path.rpartition("/")[2]
