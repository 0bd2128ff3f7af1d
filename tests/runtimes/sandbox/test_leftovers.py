"""What the kernel keeps for a box beyond its processes and files, and one user could leave there for the next."""

import os
import sys

import pytest

from rollwright.runtimes.local.threads import in_thread
from rollwright.runtimes.sandbox import ipc, ports
from rollwright.runtimes.sandbox.channel import Channel
from rollwright.runtimes.state import differences
from rollwright.runtimes.testing import raises
from rollwright.wire import RuntimeFault

PYTHON = os.path.realpath(sys.executable)
_LEAVE = """
import ctypes, os, resource, socket, subprocess
libc = ctypes.CDLL(None, use_errno=True)
kept = [libc.shmget(key, 4096, 0o1666) for key in (0, 7)] + [libc.semget(7, 1, 0o1666), libc.msgget(7, 0o1666)]
print(min(kept) >= 0)
"""
_FIND = """
import ctypes
libc = ctypes.CDLL(None)
print(libc.shmget(7, 4096, 0o666), libc.semget(7, 1, 0o666), libc.msgget(7, 0o666))
print([len(open(f"/proc/sysvipc/{kind}").readlines()) for kind in ("shm", "sem", "msg")])
"""
_TOUCHES = {
    "nice=7": "os.setpriority(os.PRIO_PROCESS, 1, 7)",
    "policy=5": "os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))",
    "RLIMIT_NOFILE=10:10": "resource.prlimit(1, resource.RLIMIT_NOFILE, (10, 10))",
}


async def run(box, code):
    result = await box.run([PYTHON, "-c", code])
    assert result.ok, result
    return result.text


@pytest.mark.parametrize("direct", [True, False])
async def test_objects_of_ipc_go_with_a_reset(make, monkeypatch, direct):
    monkeypatch.setattr("rollwright.runtimes.sandbox.layout.DIRECT", direct)
    async with make() as box:
        fresh = await box.inspect()
        for _ in range(2):
            assert await run(box, _LEAVE) == "True\n"
            found = [word.split()[1] for word in differences(fresh, await box.inspect())]
            assert found == ["msg", "sem", "shm", "shm"]
            await box.reset()
            assert await box.inspect() == fresh
            assert await run(box, _FIND) == "-1 -1 -1\n[1, 1, 1]\n"


async def test_a_reset_that_leaves_objects_of_ipc_is_not_believed(make, monkeypatch):
    ask = Channel.ask

    async def forgets(self, op, fds=(), **fields):
        return ({}, []) if op == "empty_ipc" else await ask(self, op, fds, **fields)

    monkeypatch.setattr(Channel, "ask", forgets)
    async with make() as box:
        assert await run(box, _LEAVE) == "True\n"
        with pytest.raises(RuntimeFault, match="shm 0 with key 0 is new"):
            await box.reset()


async def test_message_queues_are_seen_and_removed(make, monkeypatch, tmp_path):
    """Where landlock keeps nobody from making them. These are made from outside, as landlock would not let the box."""
    for module in ("layout", "box"):
        monkeypatch.setattr(f"rollwright.runtimes.sandbox.{module}.watches_queues", lambda: True)
    # An order that no other test has written down, and that has all descriptors that a box can have.
    async with make(disk_mb=77, workspace_from=str(tmp_path)) as box:
        fresh, queues = await box.inspect(), box._box._ipc._queues
        os.close(os.open("left", os.O_CREAT | os.O_RDWR, 0o666, dir_fd=queues))
        box._seen = None
        assert differences(fresh, await box.inspect()) == ["kernel: queue left is new"]
        await box.reset()
        assert await box.inspect() == fresh
        os.close(os.open("left", os.O_CREAT | os.O_RDWR, 0o666, dir_fd=queues))
        monkeypatch.setattr(ipc.Ipc, "unlink_queues", lambda self: None)
        with pytest.raises(RuntimeFault, match="queue left is new"):
            await box.reset()


_TALK = """
import os, socket
kinds = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
for family, host in kinds if os.path.exists("/proc/net/if_inet6") else kinds[:1]:
    with socket.socket(family) as server:
        server.bind((host, 7777))
        server.listen()
        near = socket.create_connection((host, 7777))
        far, _ = server.accept()
        far.close()  # Who closes first keeps the port for a minute.
        near.close()
"""


async def test_a_port_that_was_used_can_be_used_again(make):
    async with make() as box:
        await run(box, _TALK)
        if not await in_thread(ports.end_waiting, box._box._diag):
            pytest.skip("this kernel cannot destroy sockets")
        for _ in range(3):
            await run(box, _TALK)
            await box.reset()


@pytest.mark.parametrize("what", _TOUCHES)
async def test_a_changed_first_process_is_given_up(make, what):
    async with make() as box:
        await run(box, f"import os, resource; {_TOUCHES[what]}")
        with pytest.raises(RuntimeFault, match=f"kernel: first process: .*{what}"):
            await box.reset()
        await raises(RuntimeFault, box.run(["true"]))
