"""One zygote from outside: started, asked for children, watched, ended. See inside/zygote.py for what it does.

The zygote is started with no variable of this host beyond the allow-list, so that it has no secret to hand on. It is
driven by one event loop and does not keep that loop alive; when it is let go it ends, and with it its children.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rollwright.runtimes.local import host_environment, spawn_turn
from rollwright.runtimes.local.census import MARK, note_settler
from rollwright.runtimes.local.threads import in_thread, submit

from . import channel
from .seat import Loadable

INSIDE = Path(__file__).parent / "inside"
_MARK_ROOM = 96
_NOWHERE = "/dev/null"
_NAMES_KEPT = 64
# A description that is longer, or one of many, travels in a file: the channel must have room for what ends a call.
_INLINE, _FEW = 7000, 16
_PAGE = os.sysconf("SC_PAGE_SIZE")
_LOOK_EVERY_S = 1.0
# What kernels take in one word, and, with room to spare, in all of them.
_LONGEST_WORD, _MOST_SAID = 128 << 10, 512 << 10
# What the interpreter and C libraries read when they are loaded, unseen by the zygote.
READ_EARLY = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "OMP_", "MKL_", "OPENBLAS_", "GOTO_", "KMP_")


class Unwarm(Exception):
    """This call is to be answered cold; the message is the reason that is counted."""


def check_words(args: Sequence[str], env: Mapping[str, str] | None) -> None:
    """Unwarm where a program might not be startable with these words: what is said of that is a cold run's to say."""
    words = [*args, *(f"{name}={value}" for name, value in env.items())] if env else args
    try:
        told = [word.encode(errors="surrogateescape") for word in words]
    except UnicodeEncodeError:
        raise Unwarm("words") from None
    if any(len(word) >= _LONGEST_WORD or b"\0" in word for word in told) or sum(map(len, told)) > _MOST_SAID:
        raise Unwarm("words")


class Offspring:
    """A call's process as the zygote tells of it."""

    def __init__(self, zygote: Zygote, call: int) -> None:
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[None] = loop.create_future()
        self.begun: asyncio.Future[None] = loop.create_future()
        self.begun_at = 0.0
        self.pid = 0
        self.fault = ""
        """Why this was no whole run of the script, where it was none."""
        self.ran = False
        """Whether the script may have had effects."""
        self._zygote = zygote
        self._call = call
        self._status = 0

    def kill_group(self) -> None:
        if not self.exited.done():
            self._zygote.kill(self._call)

    def reap(self) -> int:
        return self._status

    def release(self) -> None:
        self._zygote.let_go(self._call)

    def on_begun(self, pid: int) -> None:
        self.pid = pid
        self.ran = True
        self.begun_at = self.begun.get_loop().time()
        note_settler(pid)
        _settle(self.begun)

    def on_ended(self, status: int) -> None:
        self._status = status
        _settle(self.begun)
        _settle(self.exited)


class Zygote:
    """A live zygote. `broken` says why it takes no more calls."""

    def __init__(self, script: Loadable, sock: socket.socket, process: subprocess.Popen[bytes]) -> None:
        self.script = script
        self.env = zygote_environment()
        self.broken = ""
        self.calls = 0
        self.ready: asyncio.Future[None] | None = asyncio.get_running_loop().create_future()
        self.reads: frozenset[str] = frozenset()
        self.files: Mapping[str, tuple[int, ...]] = {}
        self._modules: frozenset[str] = frozenset()
        self._directory = os.path.dirname(script.path)
        self._beside = (stamp(self._directory), _names_in(self._directory))
        """The state of the script's directory, and what lies in it."""
        self._set: dict[str, str] = {}
        """What was read while it was loaded, with its value then."""
        self._unset: frozenset[str] = frozenset()
        """What was looked for then, and was not there."""
        self._names: dict[tuple[str, ...], bool] = {}
        """Whether environments of these names can suit: there are few sorts of them, and many calls."""
        self.fresh_mb = 0.0
        self._running: dict[int, Offspring] = {}
        self._sock = sock
        self._process = process
        # Neither waits for the other: whoever lets go of the last reference ends the process.
        self._end = weakref.finalize(self, _end, sock, process)
        asyncio.get_running_loop().add_reader(sock.fileno(), _hear_weakly, weakref.ref(self), sock)
        _look_weakly(weakref.ref(self))

    def __repr__(self) -> str:
        state = self.broken or f"{len(self._running)} running"
        return f"<Zygote {os.path.basename(self.script.path)} pid {self.pid}, {self.calls} calls, {state}>"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def idle(self) -> bool:
        return not self._running

    def fork(self, body: bytes, fds: Sequence[int]) -> Offspring:
        """Ask for a child with these streams, and after them a ruleset of landlock if there is one.

        Unwarm where the zygote cannot be asked.
        """
        if len(body) <= _INLINE and len(self._running) < _FEW:
            with suppress(channel.ChannelFull):
                return self._ask(b"R", fds, body)
        told = channel.nameless_file(body)
        try:
            return self._ask(b"R", [told, *fds])
        except channel.ChannelFull:
            raise Unwarm("channel full") from None
        finally:
            os.close(told)

    def fork_worker(self, channel_fd: int) -> Offspring:
        """Ask for a child that answers calls on `channel_fd` until that is closed."""
        try:
            return self._ask(b"W", [channel_fd])
        except channel.ChannelFull:
            raise Unwarm("channel full") from None

    def kill(self, call: int) -> None:
        self._say(b"K", call)

    def let_go(self, call: int) -> None:
        """Nobody asks about this call any more; a child that still runs is killed."""
        offspring = self._running.get(call)
        if offspring is None:
            return
        if offspring.exited.done():
            del self._running[call]
            self._say(b"D", call)
        else:
            self._say(b"K", call)
            offspring.exited.add_done_callback(lambda _: self.let_go(call))

    def suits(self, env: Mapping[str, str]) -> bool:
        """Whether everything that was loaded would have read the same variables in a process of its own."""
        if "*" in self.reads:
            return {**env, MARK: ""} == {**self.env, MARK: ""}
        names = tuple(env)
        if names not in self._names:
            if len(self._names) >= _NAMES_KEPT:
                self._names.clear()
            unread = (name for name in names if name.startswith(READ_EARLY) and name not in self._set)
            self._names[names] = self._unset.isdisjoint(names) and not any(unread)
        return self._names[names] and self._set.items() <= env.items()

    def current(self) -> bool:
        """Whether the files that it loaded or read are as they were, and no new one hides a module that it loaded."""
        return all(stamp(path) == seen for path, seen in self.files.items()) and not self._hidden()

    def _hidden(self) -> bool:
        now = stamp(self._directory)
        if now == self._beside[0]:
            return False
        there = _names_in(self._directory)
        new, self._beside = there - self._beside[1], (now, there)
        return any(name.partition(".")[0] in self._modules for name in new)

    def memory_mb(self) -> float:
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE / (1 << 20)
        except (OSError, IndexError):
            return 0.0

    def stopped(self) -> bool:
        """Whether it stands still by a signal, and could neither begin nor end a call."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"T", b"t")
        except (OSError, IndexError):
            return False

    def lose(self, why: str) -> None:
        """End it with all that runs in it; those calls are answered cold."""
        self.broken = self.broken or why
        if not self._end.alive:
            return
        asyncio.get_running_loop().remove_reader(self._sock.fileno())
        self._end()
        running, self._running = self._running, {}
        for offspring in running.values():
            offspring.fault = offspring.fault or why
            offspring.on_ended(-signal.SIGKILL)
        _settle(self.ready)

    async def gone(self) -> None:
        """After `lose`: see its end."""
        await in_thread(self._process.wait)

    def hear(self) -> None:
        for packet in channel.packets(self._sock):
            if packet is None:
                self.lose("zygote died")
            else:
                self._on_packet(*packet)
            if self.broken:
                return

    def _on_packet(self, kind: bytes, call: int, body: bytes) -> None:
        offspring = self._running.get(call)
        if kind == b"Y":
            known = json.loads(body)
            self.reads = frozenset(known["reads"])
            looked_for = self.reads | {name for name in self.env if name.startswith(READ_EARLY)}
            self._set = {name: self.env[name] for name in looked_for - {MARK} if name in self.env}
            self._unset = looked_for - {MARK} - self._set.keys()
            self._names.clear()
            self.files = {path: stamp(path) for path in known["files"]}
            self._modules = frozenset(known["names"])
            self.fresh_mb = self.memory_mb()
            _settle(self.ready)
        elif kind == b"N":
            self.lose(body.decode("utf-8", "replace"))
        elif offspring is None:
            return
        elif kind == b"S":
            offspring.on_begun(channel.NUMBER.unpack(body)[0])
        elif kind == b"F":
            offspring.ran = False
            offspring.fault = "no seat: " + body.decode("utf-8", "replace")
        elif kind == b"E":
            offspring.on_ended(channel.NUMBER.unpack(body)[0])

    def _ask(self, kind: bytes, fds: Sequence[int], body: bytes = b"") -> Offspring:
        if self.broken:
            raise Unwarm(self.broken)
        self.calls += 1
        offspring = Offspring(self, self.calls)
        try:
            channel.send(self._sock, kind, self.calls, fds, body)
        except OSError as error:
            self.lose("zygote died")
            raise Unwarm("zygote died") from error
        self._running[self.calls] = offspring
        return offspring

    def _say(self, kind: bytes, call: int) -> None:
        if not self.broken:
            try:
                channel.send(self._sock, kind, call)
            except (channel.ChannelFull, OSError):
                self.lose("zygote died")


async def start_zygote(script: Loadable, *, within_s: float) -> Zygote:
    """A zygote that has loaded `script`; Unwarm where it cannot be loaded warm."""
    ours, theirs = channel.pair()
    words = [os.fspath(script.python), str(INSIDE / "bottom.py"), str(theirs.fileno()), script.path, script.digest]
    async with spawn_turn():
        zygote = Zygote(script, ours, spawn_helper(words, theirs))
    try:
        async with asyncio.timeout(within_s):
            assert zygote.ready is not None
            await zygote.ready
    except TimeoutError:
        zygote.lose("slow to load")
    except BaseException:
        zygote.lose("not wanted")
        raise
    finally:
        zygote.ready = None  # A future holds its loop, and a zygote is not to.
    if zygote.broken:
        raise Unwarm(zygote.broken)
    return zygote


def spawn_helper(words: list[str], theirs: socket.socket) -> subprocess.Popen[bytes]:
    """Start a program of ours that keeps only its channel. Its streams are pipes, as those of a cold run; the other
    ends are closed at once."""
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=zygote_environment(),
            cwd="/",
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    except OSError as error:
        raise Unwarm(f"not started: {error.strerror}") from error
    finally:
        theirs.close()
    for stream in (process.stdin, process.stdout, process.stderr):
        assert stream is not None
        stream.close()
    return process


def zygote_environment() -> dict[str, str]:
    """No more than what every box has. HOME leads nowhere: what reads it while loading is found out and run cold."""
    return {**host_environment(), "HOME": _NOWHERE, "TMPDIR": _NOWHERE, "PWD": "/", MARK: "-" * _MARK_ROOM}


def stamp(path: str) -> tuple[int, ...]:
    """What changes when the file does."""
    try:
        seen = os.stat(path)
    except OSError:
        return ()
    return (seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)


def _names_in(directory: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(directory))
    except OSError:
        return frozenset()


def _hear_weakly(zygote: weakref.ref[Zygote], sock: socket.socket) -> None:
    target = zygote()
    if target is not None and sock.fileno() >= 0:
        target.hear()


def _look_weakly(zygote: weakref.ref[Zygote]) -> None:
    """See every now and then whether it was stopped, which it cannot tell: all its calls would wait for it."""
    target = zygote()
    if target is None or target.broken:
        return
    if target.stopped():
        target.lose("zygote was stopped")
    else:
        asyncio.get_running_loop().call_later(_LOOK_EVERY_S, _look_weakly, zygote)


def _end(sock: socket.socket, process: subprocess.Popen[bytes]) -> None:
    sock.close()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        submit(process.wait)
    except RuntimeError:  # This process ends, and takes no more work for its threads.
        process.wait()


def _settle(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
