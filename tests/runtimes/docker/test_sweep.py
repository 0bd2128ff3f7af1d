"""What a killed owner leaves is found by its label and freed."""

import subprocess
import sys

import pytest
from engine_books import IMAGE, containers

from rollwright.runtimes.docker.sweep import sweep

_OWNER = """
import asyncio, sys
from pathlib import Path
from rollwright.runtimes.docker import DockerConfig
from rollwright.runtimes.docker.runtime import DockerRuntime
from rollwright.runtimes.journal import Journal

async def main():
    config = DockerConfig(image=sys.argv[1], socket=sys.argv[2], memory_mb=64)
    box = DockerRuntime(config, journal=Journal(Path(sys.argv[3])))
    await box.start()
    await box.open_process(["sleep", "1000"])
    print(box.name, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.mark.blocks_loop
async def test_what_a_killed_owner_left_is_freed(engine_socket, journal, tmp_path):
    words = [sys.executable, "-c", _OWNER, IMAGE, engine_socket, str(journal.directory)]
    owner = subprocess.Popen(  # noqa: ASYNC220 - it is killed at once.
        words, stdout=subprocess.PIPE, env={"ROLLWRIGHT_CACHE_DIR": str(tmp_path), "PATH": "/bin"}
    )
    with owner:
        name = owner.stdout.readline().decode().strip()
        assert await containers(engine_socket, f"rollwright.box={name}")
        owner.kill()
    swept = await journal.sweep({"docker": sweep})
    assert (swept.freed, swept.failed) == ((name,), {})
    assert await containers(engine_socket, f"rollwright.box={name}") == []
    await sweep({"engine": f"unix://{engine_socket}", "name": name})
