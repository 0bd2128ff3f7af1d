"""The pool with boxes that are really there: a poisoner's box is as new for the next lease, or it is quarantined."""

import asyncio
import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rollwright.runtimes import PoolConfig, RuntimePool, runtime_config
from rollwright.runtimes.asking import served
from rollwright.runtimes.journal import Journal
from rollwright.runtimes.poison import check_unpoisoned, poison
from rollwright.runtimes.sweep import sweep_all
from runtimes.docker.engine_books import IMAGE

FILES = {"subprocess": 2_000, "sandbox": 50_000, "docker": 1_000, "prime": 2_000, "modal": 2_000}
"""Of the poisoner's tree; 100,000 everywhere with --soak."""
PACED = {"prime": {"creates_per_minute": 6000}, "modal": {"creates_per_s": 1000.0}}


@functools.cache
def no_sandbox():
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    words = ["bwrap", "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    tried = subprocess.run(words, capture_output=True, text=True)
    return f"the kernel refuses namespaces: {tried.stderr.strip()}" if tried.returncode else ""


@pytest.fixture(params=["subprocess", "sandbox", "docker", "prime", "prime-clean", "modal"])
def config(request, cache):
    """Every kind as it is by default, the remote ones at vendors that are played on loopback (../vendors.py)."""
    kind, _, reset = request.param.partition("-")
    if kind == "docker":
        socket = request.getfixturevalue("engine_socket")
        return runtime_config("docker", {"image": IMAGE, "socket": socket, "memory_mb": 256})
    if kind == "sandbox" and no_sandbox():
        pytest.skip(no_sandbox())
    if kind in PACED:
        request.getfixturevalue(f"{kind}_vendor")
    return runtime_config(kind, {**PACED.get(kind, {}), **({"reset": reset} if reset else {})})


async def test_the_next_lease_sees_nothing_of_a_poisoner(config, cache, pytestconfig, caplog):
    files = 100_000 if pytestconfig.getoption("--soak") else FILES[config.__struct_config__.tag]
    async with RuntimePool(PoolConfig(max_boxes=1)) as pool:
        async with pool.lease(config) as runtime:
            name, fresh = runtime.name, await runtime.inspect()
            tried = await poison(runtime, files=files, fill_mb=16)
        assert len(tried) >= 8
        async with pool.lease(config) as runtime:
            seen = pool.stats()
            assert (runtime.name == name) == (seen.resets == 1)
            await check_unpoisoned(runtime, fresh if runtime.name == name else await runtime.inspect())
        expected = [(0, 0, 0)] if config.reset_is_a_start else [(0, 1, 0), (1, 0, 0)]
        assert (seen.quarantines, seen.resets, seen.unfreed) in expected
        assert seen.quarantines == ("is quarantined: after its reset" in caplog.text), "the difference is told"
    assert list(Journal().entries()) == []


async def test_a_box_whose_user_left_nothing_elsewhere_is_used_again(config, cache):
    """A verified reset is worth its price only where it does not throw away what is clean."""
    async with RuntimePool(PoolConfig(max_boxes=1)) as pool:
        names = set()
        for _ in range(3):
            async with pool.lease(config) as runtime:
                names.add(runtime.name)
                await runtime.run(["sh", "-c", 'ls > list; echo x > "$HOME/.x"; setsid sleep 1000 > /dev/null 2>&1 &'])
                async with served("hello") as port:
                    await runtime.forward(port)
        assert (pool.stats().quarantines, len(names)) == (0, 3 if config.reset_is_a_start else 1)


async def test_every_box_at_the_vendor_was_made_by_the_pool(cache, prime_vendor):
    """A box that replaces another passes the pool's pace and breaker too, and a reset's deadline is not its own."""
    limits = PoolConfig(max_boxes=1, reset_timeout_s=0.001)
    async with RuntimePool(limits) as pool:
        for _ in range(3):
            async with pool.lease(runtime_config("prime", {"creates_per_minute": 6000})) as runtime:
                assert (await runtime.run(["true"])).ok
                seen = pool.stats()
                assert (seen.quarantines, seen.creates) == (0, len(prime_vendor.sandboxes))
        assert seen.creates == 3


def is_on_a_loop():
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def test_a_box_is_written_down_first_and_by_a_thread(config, cache, request, monkeypatch):
    """Law 5 and law 12: what a kill could leave is in the journal before it is made, and no loop waits for the disk."""
    kind = config.__struct_config__.tag
    vendor = request.getfixturevalue(f"{kind}_vendor") if kind in PACED else None
    told = []

    def boxes():
        return len(vendor.running()) if vendor is not None else 0

    def watched(method, name):
        def call(*args):
            told.append((name, is_on_a_loop(), boxes()))
            return method(*args)

        return call

    for name in ("open", "close"):
        monkeypatch.setattr(Journal, name, watched(getattr(Journal, name), name))
    before = boxes()
    async with RuntimePool() as pool, pool.lease(config) as runtime:
        assert (await runtime.run(["true"])).ok
    assert told[0] == ("open", False, before), "before there was a box"
    assert {on_loop for _, on_loop, _ in told} == {False}
    assert told[-1] == ("close", False, before), "after the box was freed"


async def test_users_that_are_cancelled_anywhere_leave_clean_boxes(config, cache):
    """Cancelled after ever more turns of the loop: while waiting, in the middle of a write or a run, at the end."""
    dirty = []

    async def use(pool):
        async with pool.lease(config) as runtime:
            seen = await runtime.run(["sh", "-c", 'ls -A . "$HOME" | grep -v :'])
            dirty.extend(seen.text.split())
            await runtime.write("file", b"x" * 1000)
            await runtime.run(["sh", "-c", 'echo x > "$HOME/other"; sleep 100 & sleep 0.01'])

    async def cut_off(pool, turns):
        user = asyncio.create_task(use(pool))
        for _ in range(turns):
            if user.done():
                break
            await asyncio.sleep(0)
        user.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await user

    async with RuntimePool(PoolConfig(max_boxes=2)) as pool:
        await use(pool)
        for turns in (0, 1, 2, 3, 5, 8, 13, 40, 100, 300, 1000):
            await asyncio.gather(cut_off(pool, turns), cut_off(pool, turns + 1))
        await use(pool)
        assert dirty == []
        seen = pool.stats()
        assert (seen.leased, seen.waiting, seen.unfreed) == (0, 0, 0)
    assert list(Journal().entries()) == []


@pytest.fixture(params=list(PACED))
def far(request, cache):
    """A vendor, and the settings of its boxes."""
    return request.getfixturevalue(f"{request.param}_vendor"), runtime_config(request.param, PACED[request.param])


async def test_a_box_that_its_vendor_ended_on_the_shelf_is_not_handed_out(far):
    """Lifetimes, idle times and failures of machines end remote boxes while nobody looks."""
    vendor, config = far
    before = set(vendor.running())
    async with RuntimePool(PoolConfig(max_boxes=1)) as pool:
        async with pool.lease(config) as runtime:
            name = runtime.name
        async with asyncio.timeout(60):
            while pool.stats().idle < 1:  # It is reset in the background.
                await asyncio.sleep(0.01)
        for sandbox_id in set(vendor.running()) - before:
            await vendor.end(sandbox_id)
        async with pool.lease(config) as runtime:
            assert runtime.name != name
            assert (await runtime.run(["echo", "up"])).stdout == b"up\n"
        assert pool.stats().unfreed == 0


OWNER = """
import asyncio, sys
from rollwright.runtimes import RuntimePool, runtime_config

async def main():
    async with RuntimePool() as pool:
        for _ in range(3):
            box = await pool.lease(runtime_config(sys.argv[1])).__aenter__()
            await box.run(["sh", "-c", f"setsid sleep {sys.argv[2]} > /dev/null 2>&1 < /dev/null &"])
        print("held", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def programs(token):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().split(b"\0")[:2] == [b"sleep", token.encode()]:
                found.append(path.parent.name)
    return found


@pytest.fixture(params=["subprocess", "sandbox", "prime", "modal"])
def kind(request):
    """Looked at before the loop runs: finding out whether there are sandboxes blocks."""
    if request.param == "sandbox" and no_sandbox():
        pytest.skip(no_sandbox())
    if request.param in PACED:
        request.getfixturevalue(f"{request.param}_vendor")
    return request.param


async def test_a_sweep_frees_the_leases_of_a_killed_owner(kind, cache, tmp_path):
    token = f"600.{os.getpid()}{list(FILES).index(kind)}"
    (tmp_path / "tmp").mkdir()
    owner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OWNER, kind, token),
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            assert (await owner.stdout.readline()).strip() == b"held"
            while len(programs(token)) < 3:  # A shell that ended may not have begun its child yet.
                await asyncio.sleep(0.01)
        assert len(list(Journal().entries())) == 3
    finally:
        owner.send_signal(signal.SIGKILL)
        await owner.wait()
    swept = await sweep_all()
    assert (len(swept.freed), swept.failed) == (3, {})
    assert list(Journal().entries()) == []
    assert programs(token) == []
    assert list((tmp_path / "tmp").iterdir()) == []
