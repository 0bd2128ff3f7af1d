"""Our side of the script in the box (box.sh): what to say to it and what its words mean.

A vendor gives a `Link`: run a shell line, upload a file. Everything else is made of these two. An answer that is lost
on the way is asked for again by the number of its command; the command itself runs at most once (see box.sh).
Exit codes from 129 to 192 are told as signals, since a shell cannot tell `exit 137` from SIGKILL.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import posixpath
import secrets
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from rollwright.runtimes.contract import Ending, ExecResult
from rollwright.runtimes.local.threads import in_thread
from rollwright.runtimes.state import BoxState
from rollwright.wire import RuntimeFault, RuntimeLost

from .looks import NO_SCRIPTS, Watch, parse_state, scripts_of

BOX_SCRIPT = Path(__file__).with_name("box.sh")
INLINE_BYTES = 48 << 10
"""What is carried inside of a request; the kernel takes no variable or word over 128 KiB."""
_LINE_BYTES = 60 << 10
"""The longest line that is sent as such: one vendor takes 64 KiB of words."""
_OPERATION_S = 60.0
_WHOLE_BOX_S = 300.0
"""For what goes through all that is in a box: a user may have left a hundred thousand files."""
_MARGIN_S = 20.0
_FETCHES = 4
_FETCH_WAIT_S = 10
_SIGNALS = range(129, 193)


class LinkBroken(Exception):
    """The connection ended before the answer. What was asked may have been done, or not."""


class Link(Protocol):
    """A vendor's way into one box. Raises LinkBroken where the answer was lost, RuntimeLost where the box is gone."""

    async def execute(self, line: str, env: Mapping[str, str], timeout_s: float) -> bytes:
        """Stdout of `sh -c line`, which is ASCII. `env` must not travel on a command line."""
        ...

    async def upload(self, path: str, data: bytes) -> None:
        """Make or replace a file in a directory that exists."""
        ...


class RemoteShell:
    """Operations in one box. `root` is the directory in it that is ours; `workspace` may lie elsewhere."""

    def __init__(self, link: Link, root: str, workspace: str = "") -> None:
        self._link = link
        self.root = root
        self.workspace = workspace or f"{root}/workspace"
        self._token = secrets.token_hex(16)
        self._numbers = 0
        self._done: list[int] = []
        self._scripts_look = NO_SCRIPTS

    async def install(self) -> None:
        """Put the script into a fresh box, and make the directories."""
        script = base64.b64encode((await in_thread(_script)).encode()).decode()
        control = shlex.quote(f"{self.root}/control")
        line = f'mkdir -p {control} && printf %s "$RW_DATA" | base64 -d > {control}/box.sh'
        await self._repeat(f"{line} && exec {self._line('make', self._token)}", {"RW_DATA": script}, b"made")

    async def run(
        self, argv: Sequence[str], env: Mapping[str, str], stdin: bytes, cwd: str, timeout_s: float, limit: int
    ) -> ExecResult:
        """Run a program to its end. A caller that is cancelled calls `kill` with the number it took."""
        return await self.run_numbered(self.number(), argv, env, stdin, cwd, timeout_s, limit)

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    async def run_numbered(
        self,
        number: int,
        argv: Sequence[str],
        env: Mapping[str, str],
        stdin: bytes,
        cwd: str,
        timeout_s: float,
        limit: int,
    ) -> ExecResult:
        given = _prefixed(env)
        if 0 < len(stdin) <= INLINE_BYTES:
            given["RW_STDIN"] = base64.b64encode(stdin).decode()
        elif stdin:
            await self._link.upload(f"{self.root}/control/{number}.stdin", stdin)
        line = await self.command_line("run", number, argv, env, cwd, limit, f"{timeout_s:.3f}")
        loop = asyncio.get_running_loop()
        began = loop.time()
        answer = await self._ask_once(number, line, given, timeout_s)
        result = parse_report(answer, wall_s=loop.time() - began)
        self.forget(number)
        return result

    async def command_line(
        self,
        operation: str,
        number: int,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        limit: int,
        seconds: str = "",
    ) -> str:
        """The shell line that begins a command; a long one is uploaded, since a word has a greatest length."""
        forget, self._done = self._done, []
        words = [str(number), self.mark(number), str(limit), seconds, self.resolve(cwd)]
        line = self._line(operation, *words, " ".join(env), " ".join(map(str, forget)), *argv)
        if len(line) <= _LINE_BYTES:
            return f"exec {line}"
        place = f"{self.root}/control/{number}.line"
        await self._link.upload(place, f"set -- {line}\n".encode())
        return f'. {shlex.quote(place)} && rm -f {shlex.quote(place)} && exec "$@"'

    def forget(self, number: int) -> None:
        """The report of this command is no longer needed; the next command takes it away."""
        self._done.append(number)

    async def kill(self, number: int) -> None:
        """End a command with all its children, also one that has not begun."""
        answer = await self._repeat(self._exec("kill", str(number), self.mark(number)))
        if not answer.startswith(b"rollwright gone"):
            raise RuntimeFault(f"processes of command {number} survive being killed")

    async def report(self, number: int) -> ExecResult:
        """The report of a command that has ended, asked for by its number."""
        return parse_report(await self._fetch(number, 0.0), wall_s=0.0)

    async def read(self, path: str, limit: int) -> bytes:
        answer = await self._repeat(self._exec("read", self.resolve(path), str(limit)))
        head, _, body = answer.partition(b"\n")
        if head != b"rollwright file":
            raise RuntimeFault(f"file {path!r}: {_refusal(head)}")
        return _decoded(body.rpartition(b".")[0])

    async def write(self, path: str, data: bytes) -> None:
        place, env = "", {}
        if len(data) <= INLINE_BYTES:
            env["RW_DATA"] = base64.b64encode(data).decode()
        else:
            place = f"{self.root}/control/upload-{self.number()}"
            await self._link.upload(place, data)
        answer = await self._repeat(self._exec("write", self.resolve(path), place), env)
        if not answer.startswith(b"rollwright written"):
            raise RuntimeFault(f"file {path!r}: {_refusal(answer)}")

    async def clear(self) -> None:
        """End everything that programs of this box started, and empty its directories."""
        old, self._token = self._token, secrets.token_hex(16)
        await self._repeat(self._sent("clear", old, self._token), {}, b"cleared", _WHOLE_BOX_S)
        self._done = []

    async def inspect(self, watch: Watch) -> BoxState:
        """What one user could leave for the next: in `root`, where `watch` says, and what runs and listens there."""
        return parse_state(await self._look(watch), self.root, watch, self._scripts_look)

    async def note_scripts(self) -> None:
        """Remember what the scripts look like. They outlive a reset, and a look tells of whatever differs from this."""
        self._scripts_look = scripts_of(await self._look(Watch()))

    async def _look(self, watch: Watch) -> bytes:
        return await self._repeat(self._sent("inspect", *watch.words()), {}, b"state", _WHOLE_BOX_S)

    def mark(self, number: int) -> str:
        return f"{self._token}/{number}."

    def resolve(self, path: str) -> str:
        if "\0" in path:
            raise RuntimeFault("a path holds a NUL byte")
        return posixpath.normpath(posixpath.join(self.workspace, path))

    def _line(self, operation: str, *words: str) -> str:
        return shlex.join(["/bin/sh", f"{self.root}/control/box.sh", self.root, operation, *words])

    def _sent(self, operation: str, *words: str) -> str:
        """With the script as it is here: the one in the box may have been changed by who is now looked after."""
        return f"exec {shlex.join(['/bin/sh', '-c', _script(), 'sh', self.root, operation, *words])}"

    def _exec(self, operation: str, *words: str) -> str:
        return f"exec {self._line(operation, *words)}"

    async def _ask_once(self, number: int, line: str, env: Mapping[str, str], timeout_s: float) -> bytes:
        """The report of a command that is sent as often as need be and runs once."""
        for _ in range(_FETCHES):
            try:
                answer = await self._link.execute(line, env, timeout_s + _MARGIN_S)
            except LinkBroken:
                answer = await self._fetch(number, timeout_s)
            if answer.startswith(b"rollwright again"):
                answer = await self._fetch(number, timeout_s)
            if not answer.startswith(b"rollwright unknown"):
                return answer
        raise RuntimeLost(f"a command could not be brought into the box in {_FETCHES} tries")

    async def _fetch(self, number: int, timeout_s: float) -> bytes:
        """Ask for a report until it is there; the box ends the command at its deadline by itself."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s + _MARGIN_S
        while True:
            answer = await self._repeat(self._exec("fetch", str(number), str(_FETCH_WAIT_S)))
            if not answer.startswith(b"rollwright running"):
                return answer
            if loop.time() > deadline:
                raise RuntimeLost(f"command {number} is past its deadline and has no report")

    async def _repeat(
        self, line: str, env: Mapping[str, str] | None = None, expect: bytes = b"", within_s: float = _OPERATION_S
    ) -> bytes:
        """The answer to something that may be done twice."""
        for tries in range(1, _FETCHES + 1):
            try:
                answer = await self._link.execute(line, env or {}, within_s)
            except LinkBroken as error:
                if tries == _FETCHES:
                    raise RuntimeLost(f"the box does not answer after {tries} tries: {error}") from error
                await asyncio.sleep(0.1 * 2**tries)
                continue
            if not answer.startswith(b"rollwright " + expect):
                raise RuntimeFault(f"the box answered {answer[:200]!r}")
            return answer
        raise AssertionError("unreachable")


def parse_report(answer: bytes, *, wall_s: float) -> ExecResult:
    """The result that a report of box.sh tells."""
    head, _, body = answer.partition(b"\n")
    words = head.split()
    if words[1:] == [b"nowhere"]:
        raise RuntimeFault("the working directory of a command is not there")
    if len(words) != 6 or not body.rstrip().endswith(b"."):
        raise RuntimeLost(f"the box gave half a report: {answer[:200]!r}")
    code, (stdout, _, stderr) = int(words[3]), body.rstrip()[:-1].partition(b"-\n")
    late = words[2] == b"late"
    return ExecResult(
        ending=Ending.TIMED_OUT if late else Ending.SIGNALLED if code in _SIGNALS else Ending.EXITED,
        exit_code=124 if late else code,
        stdout=_decoded(stdout),
        stderr=_decoded(stderr),
        stdout_dropped=int(words[4]),
        stderr_dropped=int(words[5]),
        wall_s=wall_s,
    )


@functools.cache
def _script() -> str:
    return BOX_SCRIPT.read_text()


def _prefixed(env: Mapping[str, str]) -> dict[str, str]:
    """Variables as the script expects them: it must not itself be run with the program's PATH or preloads."""
    return {f"RWE_{name}": value for name, value in env.items()}


def _refusal(head: bytes) -> str:
    return head.removeprefix(b"rollwright refused").decode("utf-8", "replace").strip() or "the box refused"


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text)
    except binascii.Error as error:
        raise RuntimeLost(f"the box gave garbled output: {error}") from error
