"""Warm scripts inside a box that this process only reaches through its contract: one zygote per box and script.

The programs of `inside/` are written into the box, and a carrier is opened there with `open_process`; its stdin and
stdout are the private channel. A kind brings its own way to place files and its interpreter, and gets back answers, or
Unwarm where it has to run the script cold.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Mapping, Sequence

from rollwright.runtimes.contract import Ending, ExecResult, Process, Runtime
from rollwright.runtimes.local.shield import shielded
from rollwright.runtimes.provision.flights import Flights
from rollwright.wire import RuntimeFault

from .stats import stats
from .zygotes import INSIDE, READ_EARLY, Unwarm

PROGRAMS = ("carrier.py", "zygote.py", "seating.py", "ending.py", "worker.py")
_SIZE = struct.Struct("!I")
_FRAME_LIMIT = 256 << 20
_KILL_S = 10.0
_TIMED_OUT_CODE = 124


class InboxZygote:
    """A script that is loaded in a box. `broken` says why it takes no more calls; whoever opens it closes it."""

    def __init__(self, process: Process) -> None:
        self.broken = ""
        self._process = process
        self._asked = 0
        self._waiting: dict[int, asyncio.Future[tuple[dict[str, object], bytes]]] = {}
        self._ready: asyncio.Future[dict[str, object]] = asyncio.get_running_loop().create_future()
        self._reads: frozenset[str] = frozenset()
        self._writing = asyncio.Lock()
        self._listener = asyncio.create_task(self._listen(), name="warm inbox")

    async def load(self, within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                told = await asyncio.shield(self._ready)
        except TimeoutError:
            raise Unwarm("slow to load") from None
        if told["kind"] != "ready":
            raise Unwarm(str(told["body"]))
        self._reads = frozenset(json.loads(str(told["body"]))["reads"])

    async def run(
        self, args: Sequence[str], env: Mapping[str, str], stdin: bytes, timeout_s: float, output_limit: int
    ) -> ExecResult:
        """The answer of a forked child; at the deadline, or when the caller is cancelled, it is killed first."""
        if any(name in self._reads or name.startswith(READ_EARLY) for name in env) or (env and "*" in self._reads):
            raise Unwarm("environment")
        loop = asyncio.get_running_loop()
        self._asked += 1
        number, began = self._asked, loop.time()
        answer = self._waiting[number] = loop.create_future()
        told = {"kind": "run", "id": number, "argv": list(args), "env": dict(env), "limit": output_limit}
        try:
            await self._send(told, stdin)
            await asyncio.wait({answer}, timeout=timeout_s)
            timed_out = not answer.done()
            if timed_out:
                await self._kill(number, answer)
            head, rest = answer.result()
        except asyncio.CancelledError:
            await shielded(self._kill(number, answer), within_s=_KILL_S + 2)
            raise
        finally:
            del self._waiting[number]
        return _result(head, rest, timed_out=timed_out, wall_s=loop.time() - began)

    async def close(self) -> None:
        self._lose("closed")
        self._listener.cancel()
        await asyncio.wait({self._listener})
        await self._process.__aexit__(None, None, None)

    async def _kill(self, number: int, answer: asyncio.Future[tuple[dict[str, object], bytes]]) -> None:
        await self._send({"kind": "kill", "id": number})
        await asyncio.wait({answer}, timeout=_KILL_S)
        if not answer.done():
            self._lose("zygote hangs")

    async def _send(self, told: Mapping[str, object], rest: bytes = b"") -> None:
        if self.broken:
            raise Unwarm(self.broken)
        line = json.dumps(told).encode() + b"\n"
        try:
            async with self._writing:
                await self._process.write(_SIZE.pack(len(line) + len(rest)) + line + rest)
        except RuntimeFault as error:
            self._lose("zygote died")
            raise Unwarm("zygote died") from error

    async def _listen(self) -> None:
        heard = bytearray()
        try:
            while chunk := await self._process.read():
                heard += chunk
                while (frame := _take(heard)) is not None:
                    self._on_frame(*frame)
        finally:
            self._lose("zygote died")

    def _on_frame(self, told: dict[str, object], rest: bytes) -> None:
        if told["kind"] != "ended":
            if not self._ready.done():
                self._ready.set_result(told)
            return
        answer = self._waiting.get(int(str(told["id"])))
        if answer is not None and not answer.done():
            answer.set_result((told, rest))

    def _lose(self, why: str) -> None:
        self.broken = self.broken or why
        if not self._ready.done():
            self._ready.set_result({"kind": "refused", "body": why})
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_result(({"fault": why}, b""))


class Inbox:
    """The scripts that are loaded in one box, each once. Whoever makes it closes it, or resets it with the box."""

    def __init__(self, runtime: Runtime, directory: str, *, load_s: float = 120.0) -> None:
        self._runtime = runtime
        self._directory = directory
        self._load_s = load_s
        self._zygotes: dict[str, InboxZygote] = {}
        self._refused: dict[str, str] = {}
        self._flights: Flights[InboxZygote] = Flights()

    async def zygote(self, python: str, script: str, digest: str) -> InboxZygote:
        """The one that has loaded the script at `script` of the box; to be had before a CPU slot is taken."""
        key = f"{python} {script} {digest}"
        if key in self._refused:
            raise Unwarm(self._refused[key])
        found = self._zygotes.get(key)
        if found is not None and not found.broken:
            return found
        return await self._flights.join(key, lambda: self._open(key, python, script, digest))

    async def close(self) -> None:
        """End them all; the next call loads anew."""
        zygotes, self._zygotes = list(self._zygotes.values()), {}
        for zygote in zygotes:
            await zygote.close()

    async def _open(self, key: str, python: str, script: str, digest: str) -> InboxZygote:
        broken = self._zygotes.pop(key, None)
        if broken is not None:
            stats.replaced += 1
            await broken.close()
        stats.started += 1
        try:
            opened = await open_inbox(self._runtime, python, script, digest, self._directory, within_s=self._load_s)
        except Unwarm as refusal:
            self._refused[key] = str(refusal)
            raise
        self._zygotes[key] = opened
        return opened


async def open_inbox(
    runtime: Runtime, python: str, script: str, digest: str, directory: str, *, within_s: float
) -> InboxZygote:
    """Load `script`, which lies in the box with this content, under `python` of the box; Unwarm where that fails.

    The programs are written below `directory` of the box.
    """
    for name in PROGRAMS:
        await runtime.write(f"{directory}/{name}", (INSIDE / name).read_bytes())
    process = await runtime.open_process([python, f"{directory}/carrier.py", script, digest])
    zygote = InboxZygote(process)
    try:
        await zygote.load(within_s)
    except BaseException:
        await shielded(zygote.close(), within_s=_KILL_S)
        raise
    return zygote


def _take(heard: bytearray) -> tuple[dict[str, object], bytes] | None:
    """The first whole frame of what was heard, taken out of it."""
    if len(heard) < _SIZE.size:
        return None
    size = _SIZE.unpack_from(heard)[0]
    if size > _FRAME_LIMIT:
        raise RuntimeFault(f"a frame of {size} bytes came out of a box")
    if len(heard) < _SIZE.size + size:
        return None
    line, _, rest = bytes(heard[_SIZE.size : _SIZE.size + size]).partition(b"\n")
    del heard[: _SIZE.size + size]
    told: dict[str, object] = json.loads(line)
    return told, rest


def _result(told: Mapping[str, object], rest: bytes, *, timed_out: bool, wall_s: float) -> ExecResult:
    if told["fault"]:
        raise Unwarm(str(told["fault"]).partition(":")[0])
    status, size = int(str(told["status"])), int(str(told["out"]))
    dropped = told["dropped"]
    assert isinstance(dropped, list)
    return ExecResult(
        Ending.TIMED_OUT if timed_out else Ending.SIGNALLED if status < 0 else Ending.EXITED,
        _TIMED_OUT_CODE if timed_out else 128 - status if status < 0 else status,
        rest[:size],
        rest[size:],
        dropped[0],
        dropped[1],
        wall_s=wall_s,
    )
