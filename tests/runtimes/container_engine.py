"""A real engine for every test that asks for `engine_socket`, started once. As root, one of our own in a temporary
directory; else the one that answers; else a skip.
"""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from rollwright.runtimes.docker.api import Engine, address_of
from runtimes.docker.engine_books import IMAGE
from runtimes.docker.rootfs import image_tar

_UP_S = 60.0
# The network of the machine is not touched: no bridge, no packet filter, no forwarding.
_QUIET = ["--iptables=false", "--ip6tables=false", "--bridge=none", "--ip-forward=false", "--ip-masq=false"]


@pytest.fixture(scope="session")
def engine_socket():
    """The address of an engine that has IMAGE."""
    tools = shutil.which("busybox"), shutil.which("dash")
    if None in tools:
        pytest.skip("an image is made of busybox-static and dash, which are not both installed here")
    if os.geteuid() == 0 and shutil.which("dockerd"):
        yield from _own_engine(tools)
    elif _answers(address_of().path):
        asyncio.run(_import_image(address_of().path, tools))
        yield address_of().path
        asyncio.run(_remove_image(address_of().path))
    else:
        pytest.skip(f"no engine answers at {address_of()}, and only root can start dockerd here, if it is installed")


def _own_engine(tools):
    # Not below tmp_path: the path of a socket has to be short.
    place = Path(tempfile.mkdtemp(prefix="rw-engine-"))
    path = str(place / "engine.sock")
    words = ["dockerd", "-H", f"unix://{path}", "--data-root", place / "data", "--exec-root", place / "exec"]
    with open(place / "log", "wb") as log:
        daemon = subprocess.Popen([*words, "--pidfile", place / "pid", *_QUIET], stdout=log, stderr=log)
    try:
        _await_up(daemon, path, place / "log")
        asyncio.run(_import_image(path, tools))
        yield path
    finally:
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(60)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait(10)
        _unmount_below(place)
        shutil.rmtree(place, ignore_errors=True)


def _unmount_below(place):
    """The engine leaves the network namespace mounted that it lent to containers of the host's network."""
    points = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for point in sorted((point for point in points if point.startswith(f"{place}/")), reverse=True):
        subprocess.run(["umount", point], check=False)


def _await_up(daemon, path, log):
    deadline = time.monotonic() + _UP_S
    while not _answers(path):
        if daemon.poll() is not None or time.monotonic() > deadline:
            pytest.skip(f"dockerd does not start here: {log.read_text()[-600:]}")
        time.sleep(0.05)


def _answers(path):
    if not path or not Path(path).is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(5)
        try:
            probe.connect(path)
            probe.sendall(b"GET /_ping HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n\r\n")
            return b"200" in probe.recv(64)
        except OSError:
            return False


async def _remove_image(path):
    engine = Engine(address_of(path))
    try:
        await engine.call("DELETE", f"/images/{IMAGE}", allow=(404,))
    finally:
        await engine.close()


async def _import_image(path, tools):
    engine = Engine(address_of(path))
    try:
        tar = await asyncio.to_thread(image_tar, *tools)
        name, _, tag = IMAGE.partition(":")
        query = {"fromSrc": "-", "repo": name, "tag": tag}
        answer = await engine.call("POST", "/images/create", query=query, data=tar, timeout_s=120)
        assert answer.status == 200
    finally:
        await engine.close()
