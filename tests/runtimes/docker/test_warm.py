"""Warm scripts in containers: loaded in the box, forked per call."""

import asyncio
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "warm"))

import in_boxes

from rollwright.runtimes.docker.relay import Relay, to_dialled
from rollwright.runtimes.warm import stats
from rollwright.wire import RuntimeLost


@pytest.fixture
def write(tmp_path):
    def written(body):
        path = tmp_path / "a script.py"
        path.write_text(body)
        return path

    return written


async def test_warm_and_cold_agree(box, write):
    await in_boxes.check_agreement(box, write)


async def test_a_user_who_is_not_root_in_an_image_that_is_read_only_has_the_same(make, write):
    async with make(user="1000", read_only=True) as box:
        await in_boxes.check_one_load(box, write)
        await in_boxes.check_deadline(box, write)


async def test_a_script_is_loaded_once_per_container(box, write):
    await in_boxes.check_one_load(box, write)


async def test_a_late_script_is_ended_with_all_it_started(box, write):
    await in_boxes.check_deadline(box, write)


async def test_a_script_that_may_have_begun_is_not_run_twice(box, write):
    await in_boxes.check_never_twice(box, write)


async def test_a_reset_breaks_off_warm_calls(box, write):
    await in_boxes.check_reset_under_a_call(box, write)


async def test_an_engine_that_does_not_share_our_files_loads_too(make, write, engine_socket, far):
    relay = Relay(to_dialled(lambda: asyncio.open_unix_connection(engine_socket)))
    relay.attach(server := await asyncio.start_server(relay.accept, "127.0.0.1", 0))
    try:
        async with make(socket=f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}") as box:
            await in_boxes.check_one_load(box, write)
            await in_boxes.check_deadline(box, write)
    finally:
        await relay.close()


async def test_a_container_that_ends_under_a_warm_call_is_a_lost_box(box, write):
    path, before = write("import time\nopen('here', 'w').close()\ntime.sleep(1000)\n"), stats.forked
    call = asyncio.create_task(box.run_script(path, timeout_s=1000, warm=True))
    assert (await box.run(["sh", "-c", "until [ -e here ]; do sleep 0.02; done"])).ok
    await box._engine.call("POST", f"/containers/{box._inside.container.id}/kill")
    with pytest.raises(RuntimeLost):
        await call
    assert stats.forked == before
