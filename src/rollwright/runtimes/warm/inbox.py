"""Warm scripts inside a box that this process only reaches through its contract: one zygote per box and script.

The programs of `inside/` are brought into the box, and a carrier is opened there as a process; its stdin and stdout are
the private channel. A kind brings its own way to place files and to open processes, and gets back answers, Unwarm where
it has to run the script cold, or RuntimeFault where the script may have begun and its answer was lost.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rollwright.runtimes.contract import Ending, ExecResult, Process
from rollwright.runtimes.local.shield import shielded
from rollwright.runtimes.provision.flights import Flights
from rollwright.wire import RuntimeFault

from .keeper import Care
from .stats import stats
from .zygotes import INSIDE, READ_EARLY, Unwarm

_SIZE = struct.Struct("!I")
_FRAME_LIMIT = 256 << 20
_KILL_S = 10.0
_SEND_S = 120.0
_CLOSE_S = 90.0
_TIMED_OUT_CODE = 124
_LOST = "lost"

Opener = Callable[[Sequence[str], Mapping[str, str]], Awaitable[Process]]
Bring = Callable[[], Coroutine[Any, Any, str]]
"""Brings the programs into the box; the directory where they lie there."""
Check = Callable[[], None]
"""Raises RuntimeLost once the box was stopped or reset."""


def programs() -> dict[str, bytes]:
    """What has to lie in one directory of the box, by name. Blocks."""
    return {path.name: path.read_bytes() for path in sorted(INSIDE.glob("*.py"))}


@dataclass(frozen=True, slots=True)
class BoxScript:
    """A script that lies in the box with this content, and what runs it there."""

    python: str
    path: str
    digest: str
    env: Mapping[str, str] = field(default_factory=dict)
    """What its interpreter is given before any call, such as the way to its packages."""

    @property
    def key(self) -> str:
        return json.dumps([self.python, self.path, self.digest, sorted(self.env.items())])


class InboxZygote:
    """A script that is loaded in a box. `broken` says why it takes no more calls; whoever opens it closes it."""

    def __init__(self, process: Process) -> None:
        self.broken = ""
        self.calls = 0
        self.fresh_mb = 0.0
        self.memory_mb = 0.0
        """What its carrier last told of it. A program of the box may make that up: it decides nothing but a renewal."""
        self._process = process
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
        self.fresh_mb = self.memory_mb

    async def run(
        self, args: Sequence[str], env: Mapping[str, str], stdin: bytes, timeout_s: float, output_limit: int
    ) -> ExecResult:
        """The answer of a forked child; at the deadline, or when the caller is cancelled, it is killed first."""
        if self.broken:
            raise Unwarm(self.broken)
        if any(name in self._reads or name.startswith(READ_EARLY) for name in env) or (env and "*" in self._reads):
            raise Unwarm("environment")
        loop = asyncio.get_running_loop()
        self.calls += 1
        number, began = self.calls, loop.time()
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
            with suppress(RuntimeFault):  # It was ended with its zygote; the cancellation goes on.
                await shielded(self._kill(number, answer), within_s=_CLOSE_S)
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
        """End one call; where that fails, the zygote with all its calls."""
        if not answer.done():
            await self._send({"kind": "kill", "id": number})
            await asyncio.wait({answer}, timeout=_KILL_S)
        if not answer.done():
            self._lose("zygote hangs")
            await self._process.kill()

    async def _send(self, told: Mapping[str, object], rest: bytes = b"") -> None:
        """Whole frames only: half of one, left by a caller who was cancelled, would spoil all that follow."""
        line = json.dumps(told).encode() + b"\n"
        await shielded(self._write(_SIZE.pack(len(line) + len(rest)) + line + rest), within_s=_SEND_S)

    async def _write(self, frame: bytes) -> None:
        try:
            async with self._writing:
                if not self.broken:
                    await self._process.write(frame)
        except RuntimeFault:
            self._lose("zygote died")
        except BaseException:
            self._lose("zygote hangs")
            raise

    async def _listen(self) -> None:
        heard = bytearray()
        try:
            while chunk := await self._process.read():
                heard += chunk
                while (frame := _take(heard)) is not None:
                    self._on_frame(*frame)
        except (RuntimeFault, ValueError, KeyError, TypeError):
            # Whatever comes out of a box is what a program in it may have made of it: nonsense ends the zygote.
            self._lose("zygote spoke nonsense")
        finally:
            self._lose("zygote died")

    @property
    def idle(self) -> bool:
        return not self._waiting

    def worn(self, care: Care) -> bool:
        return self.calls >= care.max_calls or self.memory_mb - self.fresh_mb > care.max_growth_mb

    def _on_frame(self, told: dict[str, object], rest: bytes) -> None:
        self.memory_mb = float(str(told.get("memory_mb", self.memory_mb)))
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
                answer.set_result(({_LOST: why}, b""))


class Inbox:
    """The scripts that are loaded in one box, each once, for one user of it. Whoever makes it closes it for good.

    A zygote that is spent takes no more calls, and ends once those that it has are answered.
    """

    def __init__(self, opener: Opener, bring: Bring, check: Check, care: Care | None = None) -> None:
        self.check = check
        self.care = care or Care()
        self._opener = opener
        self._bring = bring
        self._directory = ""
        self._zygotes: dict[str, InboxZygote] = {}
        self._refused: dict[str, str] = {}
        self._open: set[InboxZygote] = set()
        self._retired: list[InboxZygote] = []
        self._flights: Flights[InboxZygote] = Flights()
        self._bringing: Flights[str] = Flights()

    def __repr__(self) -> str:
        return f"<Inbox {len(self._zygotes)} loaded, {len(self._refused)} refused>"

    async def zygote(self, script: BoxScript) -> InboxZygote:
        """The one that has loaded the script; to be had before a CPU slot is taken, and asked for again in it."""
        await self._end_retired()
        key = script.key
        if key in self._refused:
            raise Unwarm(self._refused[key])
        found = self._zygotes.get(key)
        if found is not None and not found.broken and not found.worn(self.care):
            return found
        return await self._flights.join(key, lambda: self._load(script))

    async def close(self) -> None:
        """Let go of them all. Processes of a box that was reset or stopped are not ended here: that is its own work."""
        self._zygotes.clear()
        for zygote in list(self._open):
            await self._end(zygote)

    async def _load(self, script: BoxScript) -> InboxZygote:
        replaced = self._zygotes.pop(script.key, None)
        if replaced is not None:
            stats.replaced += 1
            self._retired.append(replaced)
            await self._end_retired()
        stats.started += 1
        if not self._directory:
            self._directory = await self._bringing.join("programs", self._bring)
        self.check()  # And nothing between here and the process: it must not be opened in the next user's box.
        words = [script.python, f"{self._directory}/carrier.py", script.path, script.digest]
        zygote = InboxZygote(await self._opener(words, script.env))
        self._open.add(zygote)
        try:
            await zygote.load(self.care.load_s)
            self.check()
        except BaseException as error:
            if isinstance(error, Unwarm):
                self._refused[script.key] = str(error)
            await shielded(self._end(zygote), within_s=_CLOSE_S)
            raise
        self._zygotes[script.key] = zygote
        return zygote

    async def _end_retired(self) -> None:
        for zygote in [old for old in self._retired if old.broken or old.idle]:
            if zygote in self._retired:  # Else another call saw to it while this one waited.
                self._retired.remove(zygote)
                await self._end(zygote)

    async def _end(self, zygote: InboxZygote) -> None:
        self._open.discard(zygote)
        await zygote.close()


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
    if _LOST in told:
        raise RuntimeFault(f"a script was cut off in the middle: {told[_LOST]}")
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
