"""What the manifests do, done by hand: keys are made, a broker starts with them, a worker joins, orders are given."""

import asyncio
import json
import os
import socket
import stat
import sys
from contextlib import asynccontextmanager

import pytest

from rollwright.cli.addresses import read_address
from rollwright.cli.main import run
from rollwright.serve import EnvClient
from rollwright.tasks import load_tasks, make_taskset


def three_ports() -> int:
    """The first of three that are free and stand side by side. Where to look depends on the process, for another run of
    the tests looks too."""
    first = 20000 + os.getpid() * 7 % 9000
    for base in range(first, first + 3000, 7):
        try:
            for port in range(base, base + 3):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return base
    raise AssertionError("no three free ports")


@asynccontextmanager
async def rollwright(*argv, cwd):
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-m", "rollwright", *argv]
    process = await asyncio.create_subprocess_exec(*command, cwd=cwd, stdout=pipe, stderr=pipe)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(60):
            await process.communicate()


async def said(*argv, cwd):
    async with rollwright(*argv, cwd=cwd) as process, asyncio.timeout(60):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_a_worker_joins_with_the_keys_of_a_peer(tmp_path):
    assert (await said("keys", "keys", cwd=tmp_path))[0] == 0
    server_keys, peer_keys = tmp_path / "keys" / "server-keys.json", tmp_path / "keys" / "peer-keys.json"
    assert [stat.S_IMODE(file.stat().st_mode) for file in (server_keys, peer_keys)] == [0o600, 0o600]
    assert json.loads(server_keys.read_text())["secret_key"]
    assert not json.loads(peer_keys.read_text())["secret_key"]
    code, _, words = await said("keys", "keys", cwd=tmp_path)
    assert code == 2
    assert "is there already" in words
    port = three_ports()
    where, keys = f"tcp://localhost:{port}", f"--keys={peer_keys}"
    serve = ["serve", "reverse-text", "--workers=0", f"--address=tcp://127.0.0.1:{port}", "--advertise=localhost"]
    async with (
        rollwright(*serve, f"--keys={server_keys}", "--output=place", cwd=tmp_path),
        rollwright("join", where, keys, cwd=tmp_path) as worker,
        EnvClient(read_address(where, str(peer_keys)), ready_timeout_s=180.0) as environment,
    ):
        assert read_address(str(tmp_path / "place")).front == where
        task = load_tasks(make_taskset("reverse-text", {}))[0]
        trace = await environment.run(task)
        assert (trace.task_id, trace.reward) == (task.id, 1.0)
        code, out, _ = await said("ctl", "status", "--json", "-s", where, keys, cwd=tmp_path)
        (found,) = json.loads(out)["workers"]
        assert (code, found["phase"], found["vitals"]["pid"]) == (0, "ready", worker.pid)
        code, out, _ = await said("ctl", "drain", "-s", where, keys, cwd=tmp_path)
        assert code == 0
        assert "joined worker" in out
        async with asyncio.timeout(60):
            assert await worker.wait() == 0


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--address=tcp://127.0.0.1:0", "--keys=keys/peer-keys.json"], "needs the file that holds its secret key"),
        (["--address=tcp://127.0.0.1:0", "--keys=nowhere.json"], "rollwright keys DIR"),
        (["--address=tcp://0.0.0.0:0"], "--advertise"),
        (["--launcher=ray"], "add --address"),
    ],
)
def test_a_server_that_could_not_be_reached_is_not_started(argv, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["keys", "keys"]) == 0
    assert run(["serve", "reverse-text", "--workers=0", *argv]) == 2
    assert words in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["keys"]


def test_an_address_without_keys_is_refused(capsys):
    for command in (["join", "tcp://127.0.0.1:5000"], ["ctl", "status", "-s", "tcp://127.0.0.1:5000"]):
        assert run(command) == 2
        assert "add --keys FILE" in capsys.readouterr().err
