"""PEP 723 scripts in a remote box: the script and its interpreter are brought there once per box.

The box needs python3; a script that declares dependencies or a version also needs uv there, or pip for dependencies
alone. Only the script itself is brought over, not the files beside it. A cold call is one process; a warm one is a fork
of what has the script loaded in the box (see warm/boxed.py).
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from rollwright.runtimes.contract import ExecResult
from rollwright.runtimes.local.threads import in_thread
from rollwright.runtimes.provision import Needs, needs_of
from rollwright.runtimes.provision.flights import Flights
from rollwright.runtimes.slots import UNCOUNTED, CpuSlots
from rollwright.runtimes.warm.boxed import run_in_box
from rollwright.runtimes.warm.inbox import BoxScript, Inbox, programs
from rollwright.wire import RuntimeFault

PROVISION_S = 600.0
_FIRST_START_S = 60.0
_LAST_LINES = 12

Run = Callable[[Sequence[str], Mapping[str, str], bytes, float], Awaitable[ExecResult]]
Write = Callable[[str, bytes], Awaitable[None]]
Note = Callable[[], Awaitable[None]]

_BUILD = """
set -e
place=$1 python=$2
shift 2
[ ! -e "$place/ready" ] || exit 0
rm -rf "$place"
mkdir -p "$(dirname "$place")"
if command -v uv > /dev/null; then
    uv venv --quiet --no-project --no-config ${python:+--python "$python"} "$place"
    [ "$#" -eq 0 ] || uv pip install --quiet --compile-bytecode --python "$place/bin/python" -- "$@"
elif [ -z "$python" ]; then
    python3 -m venv "$place"
    [ "$#" -eq 0 ] || "$place/bin/python" -m pip install --quiet -- "$@"
else
    echo "a script that asks for a version of Python needs uv in the image" >&2
    exit 1
fi
: > "$place/ready"
"""


class RemoteScripts:
    """The scripts of one box. `directory` lies in the box, outside of what a reset empties. `note` is called whenever
    something was brought there, so that what others change in it is known from it; None where nothing of it is kept."""

    def __init__(self, run: Run, write: Write, note: Note | None, directory: str, slots: CpuSlots) -> None:
        self._run = run
        self._write = write
        self._note = note
        self._directory = directory
        self._slots = slots
        self._places: dict[str, str] = {}
        self._interpreters: dict[str, str] = {}
        self._flights: Flights[str] = Flights()

    async def run_script(
        self,
        script: Path,
        args: Sequence[str],
        env: Mapping[str, str],
        stdin: bytes,
        timeout_s: float,
        takes_slot: bool = True,
    ) -> ExecResult:
        """Run `script` cold. Bringing it there and the wait for a slot come before the deadline begins (law 6)."""
        needs = await in_thread(needs_of, script)
        place = await self.place(script)
        python = await self.interpreter(needs)
        async with (self._slots if takes_slot else UNCOUNTED).take() as queue_s:
            result = await self._run([python, place, *args], env, stdin, timeout_s)
        return msgspec.structs.replace(result, queue_s=queue_s)

    async def run_warm(
        self,
        inbox: Inbox,
        script: Path,
        args: Sequence[str],
        env: Mapping[str, str],
        stdin: bytes,
        timeout_s: float,
        output_limit: int,
        takes_slot: bool = True,
    ) -> ExecResult:
        """The same answer from what is loaded in `inbox`."""
        needs = await in_thread(needs_of, script)
        digest = hashlib.sha256(await in_thread(script.read_bytes)).hexdigest()
        place = await self.place(script)
        python = await self.interpreter(needs)

        async def cold() -> ExecResult:
            return await self._run([python, place, *args], env, stdin, timeout_s)

        return await run_in_box(
            inbox,
            BoxScript(python, place, digest),
            args,
            env=env,
            stdin=stdin,
            timeout_s=timeout_s,
            output_limit=output_limit,
            slots=self._slots if takes_slot else UNCOUNTED,
            cold=cold,
        )

    async def place(self, script: Path) -> str:
        """Where the script lies in the box, brought there if need be."""
        content = await in_thread(script.read_bytes)
        key = hashlib.sha256(content).hexdigest()[:24]
        if key not in self._places:
            self._places[key] = await self._flights.join(key, lambda: self._bring(key, script.name, content))
        return self._places[key]

    async def interpreter(self, needs: Needs) -> str:
        """The interpreter in the box that has what a script declares, made if need be."""
        if not needs.dependencies and not needs.requires_python:
            return "python3"
        key = needs.key
        if key not in self._interpreters:
            self._interpreters[key] = await self._flights.join(key, lambda: self._build(needs))
        return self._interpreters[key]

    async def _bring(self, key: str, name: str, content: bytes) -> str:
        place = f"{self._directory}/{key}/{name}"
        await self._write(place, content)
        if self._note is not None:
            await self._note()
        return place

    async def _build(self, needs: Needs) -> str:
        place = f"{self._directory}/{needs.key}-python"
        words = ["sh", "-c", _BUILD, "sh", place, needs.requires_python, *needs.dependencies]
        result = await self._run(words, {}, b"", PROVISION_S)
        if not result.ok:
            lines = result.stderr.decode("utf-8", "replace").strip().splitlines()[-_LAST_LINES:]
            what = shlex.join(needs.dependencies) or needs.requires_python
            raise RuntimeFault("\n".join([f"no interpreter for {what} could be made in the box:", *lines]))
        if self._note is not None:
            # Its first start leaves byte code behind, which then is no change any more.
            await self._run([f"{place}/bin/python", "-c", "pass"], {}, b"", _FIRST_START_S)
            await self._note()
        return f"{place}/bin/python"


async def bring_programs(write: Write, root: str) -> str:
    """Put what loads scripts into the box, to a place that a reset removes; the directory."""
    directory = f"{root}/warm"
    for name, content in (await in_thread(programs)).items():
        await write(f"{directory}/{name}", content)
    return directory
