"""The same promises when the owner is not root. Run by root, who gives the privileges up; others test nothing else."""

import functools
import os
import shutil
import subprocess
import sys

import pytest

_CHECK = """
import asyncio, sys
from pathlib import Path
from rollwright.runtimes.journal import Journal
from rollwright.runtimes.sandbox.runtime import SandboxConfig, SandboxRuntime
from rollwright.runtimes.testing import check_runtime

LEAVE = '''
import ctypes, os, socket
libc = ctypes.CDLL(None)
assert libc.shmget(7, 4096, 0o1666) >= 0 and libc.semget(7, 1, 0o1666) >= 0
for path in ("/proc/sys/kernel/sem", "/proc/sys/fs/mqueue/msg_max", "/proc/1/oom_score_adj", "/proc/1/mem"):
    assert not os.access(path, os.W_OK), path
server = socket.create_server(("127.0.0.1", 7777))
near, (far, _) = socket.create_connection(("127.0.0.1", 7777)), server.accept()
far.close()
'''

async def leave_and_look(box):
    async with box:
        for _ in range(2):
            assert (left := await box.run(["/usr/bin/env", "python3", "-c", LEAVE])).ok, left
            assert len((await box.inspect()).kernel) == 3
            await box.reset()

journal = Journal(Path(sys.argv[1], "journal"))
asyncio.run(leave_and_look(SandboxRuntime(SandboxConfig(), journal=journal)))
kept = asyncio.run(check_runtime(lambda: SandboxRuntime(SandboxConfig(network=sys.argv[2]), journal=journal)))
assert not list(journal.entries())
print(len(kept), "kept")
"""
NOBODY = 65534


@functools.cache
def interpreter():
    """An interpreter of this version that everybody may run, and that finds what this one imports; else empty."""
    for path in (os.path.realpath(sys.executable), shutil.which("python3", path="/usr/bin") or ""):
        if path and not _as_nobody([path, "-c", "import rollwright.runtimes.sandbox.runtime"], "/").returncode:
            return path
    return ""


def _as_nobody(words, place):
    env = {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HOME": place}
    env |= {"ROLLWRIGHT_CACHE_DIR": f"{place}/cache", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        return subprocess.run(
            words, env=env, cwd="/", user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True
        )
    except PermissionError:
        return subprocess.CompletedProcess(words, 126)


@pytest.mark.parametrize("network", ["none", "full"])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else; the other tests ran as a user")
def test_an_ordinary_user_gets_the_same_box(make, network):
    if not interpreter():
        pytest.skip("no interpreter of this version can be run by everybody here")
    place = f"/var/tmp/rollwright-test-{os.getpid()}-{network}"
    os.mkdir(place, 0o700)
    try:
        os.chown(place, NOBODY, NOBODY)
        checked = _as_nobody([interpreter(), "-c", _CHECK, place, network], place)
    finally:
        shutil.rmtree(place)
    if "No permissions to create" in checked.stderr or "setting up uid map" in checked.stderr:
        pytest.skip(f"the kernel refuses namespaces to ordinary users: {checked.stderr[-200:]}")
    assert checked.stdout.endswith(" kept\n"), checked.stderr
