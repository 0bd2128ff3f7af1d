"""A real box for the server that plays the vendor: a machine of its own (../remote/machine.py), ended at once."""

import asyncio
import ctypes
import os
import signal
from concurrent.futures import ThreadPoolExecutor

from runtimes.remote import machine

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class NsBox:
    def __init__(self, name):
        self._environment = {**machine.ENVIRONMENT, "HOSTNAME": name}
        self._holder = None
        self.pid = 0

    async def start(self):
        self._holder = await asyncio.create_subprocess_exec(
            *["setpriv", "--pdeathsig", "KILL", *machine.make("sleep", "1000000")],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=self._environment,
        )
        assert await self._holder.stdout.readline() == b"up\n"
        self.pid = machine.first_process(self._holder.pid)

    async def stop(self):
        if self._holder is not None and self._holder.returncode is None:
            os.kill(self.pid, signal.SIGKILL)
            await self._holder.wait()
        if self._holder is not None:
            self._holder._transport.close()

    async def spawn(self, line, env, **pipes):
        """`bash -c line` inside, as the vendor's agent would."""
        return await asyncio.create_subprocess_exec(
            *[*machine.enter(self.pid), "/bin/bash", "-c", line], env={**self._environment, **env}, **pipes
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
