"""A forked child takes a seat in other namespaces and in a confinement, or the script is run cold."""

import dataclasses
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from rollwright.runtimes import Ending, SubprocessConfig, SubprocessRuntime
from rollwright.runtimes.sandbox import SandboxConfig
from rollwright.runtimes.sandbox.runtime import SandboxRuntime
from rollwright.runtimes.sandbox.seccomp import filter_code
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


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_a_signal_is_carried_out_of_the_namespace(far_box, script, elsewhere, counted, number):
    """Once: what was killed in the middle is not run again."""
    far_box.changes = {"join_pid": elsewhere, "namespaces": JOINED}
    path = script(f"import os\nopen('log', 'a').write('ran ')\nos.kill(os.getpid(), {number})")
    result = await far_box.run_script(path, warm=True)
    assert (result.ending, result.exit_code) == (Ending.SIGNALLED, 128 + number)
    assert Path(far_box._running().workspace, "log").read_text() == "ran "
    assert (counted.forked, counted.cold) == (1, {})


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


RIGHTS = """
import os
keys = ("Uid", "Gid", "Groups", "Umask", "Cap", "NoNewPrivs", "Seccomp", "SigBlk", "SigIgn", "SigCgt")
print([line for line in open("/proc/self/status") if line.startswith(keys)])
print(open("/proc/self/limits").read(), open("/proc/self/uid_map").read(), open("/proc/self/cgroup").read())
print([os.readlink("/proc/self/ns/" + name) for name in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")])
"""


@pytest.mark.parametrize("kind", ["subprocess", "sandbox"])
async def test_a_warm_child_has_the_rights_of_a_cold_one(kind, script, counted, tmp_path, request):
    """Whoever enters a user namespace has every capability in there, until it gives them up."""
    if kind == "sandbox":
        request.getfixturevalue("elsewhere")  # Which skips where there are no namespaces.
        if shutil.which("bwrap") is None:
            pytest.skip("bubblewrap is not installed")
    config = SandboxConfig(visible=(str(tmp_path),)) if kind == "sandbox" else SubprocessConfig(memory_mb=512)
    async with (SandboxRuntime if kind == "sandbox" else SubprocessRuntime)(config) as runtime:
        cold, warm = [await runtime.run_script(script(RIGHTS), timeout_s=60, warm=way) for way in (False, True)]
    await keeper().close()
    assert (warm.text, warm.stderr) == (cold.text, b"")
    assert ("CapEff:\\t0000000000000000" in warm.text) >= (kind == "sandbox")
    assert (counted.forked, counted.cold) == (1, {})


async def test_a_child_takes_on_the_filter_of_its_box(far_box, script, counted):
    code = filter_code()
    if not code:
        pytest.skip("the filter does not know the calls of this machine")
    far_box.changes = {"seccomp": code.hex()}
    path = script(
        "import ctypes, os, subprocess\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.unshare(0x10000000), ctypes.get_errno())\n"
        "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('Seccomp:')])\n"
        "print(subprocess.run(['grep', '-c', 'Seccomp:.*2', '/proc/self/status'], stdout=-1).stdout)"
    )
    result = await far_box.run_script(path, warm=True)
    assert (result.text, result.stderr) == ("-1 1\n['2']\nb'1\\n'\n", b"")
    assert (counted.forked, counted.cold) == (1, {})


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
