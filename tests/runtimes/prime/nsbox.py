"""A real box for the server that plays the vendor: processes in namespaces of their own, ended by the kernel at once.

Its processes, mounts and network are its own; `/mnt` is an empty file system. The rest of the disk is the host's.
"""

import asyncio
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def missing():
    """Why no such box can be had here; empty where it can."""
    if not all(map(shutil.which, ("unshare", "nsenter", "setpriv"))):
        return "unshare, nsenter and setpriv (util-linux) are not here"
    probe = subprocess.run(
        ["unshare", "--mount", "--pid", "--net", "--fork", "--mount-proc", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
        capture_output=True,
    )
    return f"namespaces cannot be made here: {probe.stderr.decode().strip()}" if probe.returncode else ""


class NsBox:
    def __init__(self):
        self._holder = None
        self.pid = 0

    async def start(self):
        others = 'while read -r from to rest; do case $to in /tmp/*|/var/*|/run/*) umount -l "$to";; esac; done'
        inside = f"{others} < /proc/mounts; mount -t tmpfs tmpfs /mnt && echo up && exec sleep 1000000"
        self._holder = await asyncio.create_subprocess_exec(
            *["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--net", "--fork", "--kill-child"],
            *["--mount-proc", "sh", "-c", inside],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PATH": os.defpath},
        )
        assert await self._holder.stdout.readline() == b"up\n"
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        self.pid = int(children.read_text().split()[0])
        await self.in_network(_loopback_up)

    async def stop(self):
        if self._holder is not None and self._holder.returncode is None:
            os.kill(self.pid, signal.SIGKILL)
            await self._holder.wait()
        if self._holder is not None:
            self._holder._transport.close()

    async def spawn(self, line, env, **pipes):
        """`bash -c line` inside, as the vendor's agent would."""
        return await asyncio.create_subprocess_exec(
            *["nsenter", "-t", str(self.pid), "-m", "-p", "-n", "-r", "-w", "--", "/bin/bash", "-c", line],
            env={"PATH": os.environ.get("PATH", os.defpath), "HOME": "/root", **env},
            **pipes,
        )

    async def in_network(self, work):
        """Call `work` in a thread that has entered the network of this box."""
        with ThreadPoolExecutor(1) as thread:
            return await asyncio.get_running_loop().run_in_executor(thread, self._entered, work)

    def _entered(self, work):
        fd = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY)
        try:
            if _libc.setns(fd, _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        finally:
            os.close(fd)
        return work()


def _loopback_up():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, 0x8914, struct.pack("16sH14s", b"lo", 0x1 | 0x40, b""))
