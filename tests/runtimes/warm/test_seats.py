"""A forked child takes a seat in other namespaces and in a confinement, or the script is run cold."""

import dataclasses
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rollwright.runtimes import Ending, SubprocessConfig, SubprocessRuntime
from rollwright.runtimes.warm import keeper

from .conftest import runs

JOINED = ("user", "mnt", "pid", "uts", "ipc")
_NOBODY = (1 << 22) - 1


@pytest.fixture
def elsewhere():
    """The id of a process in namespaces of its own."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no `unshare` here")
    words = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--uts", "--ipc", "--fork", "--mount-proc"]
    outer = subprocess.Popen(
        [*words, "sh", "-c", "hostname elsewhere; echo ready; exec sleep 1000"], stdout=subprocess.PIPE
    )
    try:
        if outer.stdout.readline() != b"ready\n":
            pytest.skip("this kernel lets nobody make namespaces")
        yield int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text())
    finally:
        outer.stdout.close()
        for pid in Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split():
            os.kill(int(pid), 9)
        outer.kill()
        outer.wait()


class Elsewhere(SubprocessRuntime):
    """A box whose seats are in other namespaces."""

    changes = {}

    def seat(self, env):
        return dataclasses.replace(super().seat(env), **self.changes)


@pytest.fixture
async def far_box(tmp_path):
    async with Elsewhere(SubprocessConfig(directory=str(tmp_path))) as box:
        yield box
    await keeper().close()


async def test_a_child_enters_the_namespaces(far_box, script, elsewhere, counted):
    far_box.changes = {"join_pid": elsewhere, "namespaces": JOINED}
    path = script(
        "import os, socket, sys\nprint(socket.gethostname(), os.getcwd(), os.getpid() < 50, sys.stdin.read())\n"
        "print(sorted(p for p in os.listdir('/proc') if p.isdigit())[:1])\nopen('made', 'w').write('x')\nsys.exit(3)"
    )
    result = await far_box.run_script(path, stdin=b"fed", warm=True)
    work = far_box._running().workspace
    assert (result.text, result.exit_code, result.stderr) == (f"elsewhere {work} True fed\n['1']\n", 3, b"")
    assert Path(work, "made").read_text() == "x"
    assert (counted.forked, counted.cold) == (1, {})


async def test_a_signal_is_carried_out_of_the_namespace(far_box, script, elsewhere):
    far_box.changes = {"join_pid": elsewhere, "namespaces": JOINED}
    result = await far_box.run_script(script("import os\nos.kill(os.getpid(), 11)"), warm=True)
    assert (result.ending, result.exit_code) == (Ending.SIGNALLED, 139)


async def test_a_timeout_ends_what_runs_in_the_namespace(far_box, script, elsewhere):
    far_box.changes = {"join_pid": elsewhere, "namespaces": JOINED}
    path = script(
        "import os, subprocess, time\nsubprocess.Popen(['sleep', '1000'])\nprint('x', flush=True)\ntime.sleep(1000)"
    )
    result = await far_box.run_script(path, timeout_s=1.5, warm=True)
    assert (result.ending, result.stdout) == (Ending.TIMED_OUT, b"x\n")
    inside = [pid for pid in _in_namespace_of(elsewhere) if pid != elsewhere and runs(pid)]
    assert inside == []
    assert runs(elsewhere)


async def test_a_seat_that_cannot_be_taken_is_cold(far_box, script, counted):
    far_box.changes = {"join_pid": _NOBODY, "namespaces": JOINED}
    result = await far_box.run_script(script("print('answered')"), warm=True)
    assert (result.text, result.stderr, counted.cold) == ("answered\n", b"", {"no seat": 1})


async def test_a_child_enrols_in_its_groups(far_box, script, tmp_path):
    doors = [tmp_path / "tasks", tmp_path / "procs"]
    for door in doors:
        door.write_text("")
    far_box.changes = {"cgroups": [str(door) for door in doors]}
    assert (await far_box.run_script(script("print('in')"), warm=True)).text == "in\n"
    assert [door.read_text() for door in doors] == ["0", "0"]


def _in_namespace_of(pid):
    place = os.readlink(f"/proc/{pid}/ns/pid")
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.readlink(entry / "ns" / "pid") == place:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
