"""The container box on a real engine: the published promises, and what it states beyond them."""

import asyncio

import pytest
import uvloop

from rollwright.runtimes import Ending, make_runtime, runtime_config
from rollwright.runtimes.docker.api import Engine, address_of
from rollwright.runtimes.poison import check_unpoisoned, poison
from rollwright.runtimes.state import differences
from rollwright.runtimes.testing import PROMISES, check_promise, sh
from rollwright.wire import RuntimeFault, RuntimeLost

_ON_UVLOOP = ("streams_are_apart_and_binary", "processes_are_talked_to", "a_program_reaches_a_server_of_the_host")
_FAR = (
    "a_timeout_is_told_and_kills_the_tree",
    "a_killed_process_is_signalled",
    "a_program_reaches_a_server_of_the_host",
    "a_look_shows_what_is_left",
)


@pytest.mark.parametrize("name", PROMISES)
async def test_the_container_keeps_its_promises(name, make):
    await check_promise(name, make)


@pytest.mark.parametrize("name", _ON_UVLOOP)
def test_the_container_keeps_its_promises_on_uvloop(name, make):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(check_promise(name, make))


@pytest.mark.parametrize("name", [name for name in PROMISES if name in _FAR])
async def test_an_engine_that_is_far_away_changes_no_promise(name, make, far):
    await check_promise(name, make)


async def test_the_next_user_sees_nothing_of_a_poisonous_one(make):
    async with make() as box:
        fresh = await box.inspect()
        await poison(box, files=1000, fill_mb=4)
        await sh(box, "echo 6.6.6.6 host >> /etc/hosts; echo x > /dev/left; rm -f /bin/ls; ln -s /bin/false /bin/ls")
        assert await box.inspect() != fresh
        await box.reset()
        await check_unpoisoned(box, fresh)


async def test_a_container_that_is_gone_is_a_lost_box(make, engine_socket):
    async with make() as box:
        process = await box.open_process(["sh", "-c", "echo ready; sleep 1000"])
        assert await process.read() == b"ready\n"
        engine = Engine(address_of(engine_socket))
        await engine.call("DELETE", f"/containers/{box._inside.container.id}", query={"force": "1"})
        await engine.close()
        assert not await box.alive()
        for operation in (
            process.wait(timeout_s=30),
            box.run(["true"]),
            box.write("x", b""),
            box.read("x"),
            box.open_process(["true"]),
        ):
            with pytest.raises(RuntimeLost):
                await operation


async def test_memory_is_bounded_and_the_box_lives_on(box):
    hog = await box.run(["python3", "-c", "x = bytearray(1 << 30)"], timeout_s=60)
    assert (hog.ending, hog.exit_code) == (Ending.SIGNALLED, 137)
    assert (await box.run(["echo", "on"])).stdout == b"on\n"


async def test_a_fork_bomb_ends_at_its_deadline(make):
    async with make(pids=64) as box:
        # The first shell becomes the one that waits: a fork that is refused would end it before its time.
        bomb = await box.run(["sh", "-c", "bomb() { bomb | bomb & }; bomb; exec sleep 1000"], timeout_s=2)
        assert bomb.ending is Ending.TIMED_OUT
        assert (await box.run(["echo", "on"])).stdout == b"on\n"


async def test_what_cannot_be_ended_alone_ends_with_its_container(make, far, monkeypatch):
    monkeypatch.setattr("rollwright.runtimes.docker.crew.SCRIPT", "exit 9")
    async with make() as box:
        result = await box.run(["sleep", "1000"], timeout_s=0.5)
        assert result.ending is Ending.TIMED_OUT
        assert not await box.alive()
        with pytest.raises(RuntimeLost):
            await box.run(["true"])


@pytest.mark.parametrize("far_away", [False, True])
async def test_the_time_at_which_a_container_was_made_is_no_trace_of_a_user(make, request, far_away):
    """Every container has its devices anew, and so later than the one before it."""
    if far_away:
        request.getfixturevalue("far")
    async with make() as box:
        fresh = await box.inspect()
        await sh(box, "touch -d '2020-01-01 00:00' /dev/null /dev/shm /dev/fd /dev")
        assert differences(fresh, await box.inspect()) == []
        await sh(box, "chmod 600 /dev/null; ln -s null /dev/other; touch /tmp/file")
        assert len(differences(fresh, await box.inspect())) >= 3


async def test_programs_run_as_the_user_they_are_given(make):
    async with make(user="agent") as box:
        await box.write("file", b"mine")
        assert await sh(box, "id -un; stat -c %U file .") == "agent\nagent\nagent\n"


async def test_a_read_only_root_leaves_three_places(make):
    async with make(read_only=True) as box:
        tried = "for place in . $HOME /tmp /etc /opt; do touch $place/x 2>/dev/null && echo $place; done; true"
        assert await sh(box, tried) == ".\n/home/rollwright\n/tmp\n"


async def test_a_missing_directory_is_refused(box):
    with pytest.raises(RuntimeFault, match="could not start"):
        await box.run(["true"], cwd="nowhere")


async def test_closed_streams_do_not_end_a_program(box):
    result = await box.run(["sh", "-c", "exec >&- 2>&- <&-; sleep 0.3; exit 6"])
    assert (result.ending, result.exit_code) == (Ending.EXITED, 6)


async def test_an_image_that_is_not_there_is_told(make):
    with pytest.raises(RuntimeFault, match="no image 'no-such-image:0'"):
        await make(image="no-such-image:0", pull=False).start()


async def test_an_image_that_cannot_be_fetched_is_told(make):
    with pytest.raises(RuntimeFault, match=r"no-such-image:0.* could not be fetched"):
        await make(image="127.0.0.1:1/no-such-image:0").start()


async def test_no_engine_is_told(tmp_path, journal):
    box = make_runtime(runtime_config("docker", {"socket": str(tmp_path / "none.sock")}))
    box._journal = journal
    with pytest.raises(RuntimeFault, match="no answer from the engine"):
        await box.start()


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.2])
async def test_a_cancelled_start_leaves_nothing(delay_s, make):
    box = make()
    starting = asyncio.create_task(box.start())
    await asyncio.sleep(delay_s)  # Not a wait for anything: it only chooses where the cancellation falls.
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert repr(box).startswith(f"<{box.name} stopped")


@pytest.mark.parametrize("delay_s", [0.0, 0.1])
async def test_a_box_whose_reset_was_cancelled_can_only_be_stopped(delay_s, make):
    async with make() as box:
        resetting = asyncio.create_task(box.reset())
        await asyncio.sleep(delay_s)  # As above.
        resetting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await resetting
        assert not await box.alive()
        with pytest.raises(RuntimeLost):
            await box.run(["true"])


async def test_a_hundred_runs_leave_no_descriptor(box, open_fds):
    await box.run(["true"])
    before = open_fds()
    await asyncio.gather(*(box.run(["cat"], stdin=b"x" * 100_000) for _ in range(10)))
    await asyncio.gather(*(box.run(["sleep", "1000"], timeout_s=0.01) for _ in range(5)))
    cancelled = [asyncio.create_task(box.run(["sleep", "1000"])) for _ in range(5)]
    await asyncio.sleep(0.05)
    for task in cancelled:
        task.cancel()
    await asyncio.gather(*cancelled, return_exceptions=True)
    # The client keeps a few connections to the engine for the next calls.
    assert open_fds() <= before + 64
    assert len(box._inside.crew) == 0
    assert (await box.inspect()).processes == ()
