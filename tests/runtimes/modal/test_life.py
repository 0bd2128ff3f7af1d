"""How a box at Modal begins and ends: patience with the vendor, lifetimes, losses, cancellations, and the journal."""

import asyncio

import pytest

from rollwright.wire import RuntimeFault, RuntimeLost

PATIENCE_S = 30.0


@pytest.fixture
def status(world):
    from grpclib import Status

    return Status


def sandbox_of(world, runtime):
    return world.named(runtime.name)


async def lost(runtime):
    """Wait until the box knows that it is over; the words with which it refuses."""
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.shield(runtime._link.ended)
    with pytest.raises(RuntimeLost) as refusal:
        await runtime.run(["true"])
    assert not await runtime.alive()
    return str(refusal.value)


async def test_creating_is_tried_again_when_the_vendor_fails(make, world, status):
    world.fail("SandboxCreateV2", *[status.UNAVAILABLE] * 5)
    async with make() as runtime:
        assert (await runtime.run(["echo", "here"])).stdout == b"here\n"


async def test_creating_waits_when_the_vendor_limits_the_rate(make, world, status, caplog):
    caplog.set_level("DEBUG", logger="rollwright.runtimes")
    world.fail("SandboxCreateV2", status.RESOURCE_EXHAUSTED)
    before = world.calls["SandboxCreateV2"]
    async with make() as runtime:
        assert await runtime.alive()
    assert world.calls["SandboxCreateV2"] - before == 2
    assert "creating a box is tried again in 1." in caplog.text


async def test_a_create_whose_answer_is_lost_makes_one_box(make, world, status):
    world.fail_after("SandboxCreateV2", status.UNAVAILABLE)
    before = len(world.sandboxes)
    async with make() as runtime:
        assert (await runtime.run(["echo", "here"])).stdout == b"here\n"
        assert len(world.sandboxes) - before == 1


async def test_creating_has_a_deadline_and_leaves_nothing(make, world, status, journal):
    world.fail("SandboxCreateV2", *[status.RESOURCE_EXHAUSTED] * 50)
    try:
        with pytest.raises(RuntimeFault, match="no box was created"):
            await make(start_timeout_s=0.5).start()
    finally:
        world._ordered.clear()
    assert list(journal.entries()) == []


async def test_a_wrong_token_is_told_with_the_next_step_and_not_tried_again(make, world, status, journal):
    world.fail("AppGetOrCreate", status.UNAUTHENTICATED)
    before = world.calls["AppGetOrCreate"]
    runtime = make(app="strangers")
    with pytest.raises(RuntimeFault, match="MODAL_TOKEN_ID"):
        await runtime.start()
    assert world.calls["AppGetOrCreate"] - before == 1
    assert list(journal.entries()) == []


async def test_boxes_of_one_process_are_begun_at_a_pace(make):
    pace = make(creates_per_s=2.0)._vendor.pace(2.0)
    waits = [pace.turn() for _ in range(20)]
    assert waits[0] == 0.0
    assert waits[-1] > 5.0
    assert make(creates_per_s=2.0)._vendor.pace(2.0) is pace, "all boxes share the pace"


async def test_what_was_asked_for_reaches_the_vendor(make, world):
    settings = {"cpu": 2.0, "memory_mb": 512, "lifetime_s": 77, "idle_timeout_s": 33, "ports": (80, 8123)}
    async with make(**settings) as runtime, make(block_network=True, ports=()) as cut_off:
        asked = sandbox_of(world, runtime).definition
        access = sandbox_of(world, cut_off).definition.network_access
    assert (asked.timeout_secs, asked.idle_timeout_secs) == (77, 33)
    assert (asked.resources.milli_cpu, asked.resources.memory_mb, asked.resources.memory_mb_max) == (2000, 512, 512)
    assert access.network_access_type == access.BLOCKED
    assert asked.network_access.network_access_type == access.OPEN
    assert [spec.port for spec in asked.open_ports.ports] == [80, 8123]
    assert "uv" in str(world.images)


async def test_the_image_is_built_once_for_many_boxes(make, world):
    before = world.calls["ImageGetOrCreate"]
    boxes = [make(image="python:3.11-slim") for _ in range(4)]
    try:
        await asyncio.gather(*[one.start() for one in boxes])
        assert world.calls["ImageGetOrCreate"] - before == 1
    finally:
        await asyncio.gather(*[one.stop() for one in boxes])


async def test_no_token_of_the_vendor_is_in_the_box(box, world):
    from runtimes.modal.modal_standin import TOKEN

    seen = (await box.run(["sh", "-c", "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline"])).stdout.decode()
    assert "PATH=" in seen
    for secret in (*TOKEN, sandbox_of(world, box).jwt):
        assert secret not in seen
    assert world.metadata["SandboxCreateV2"]["x-modal-token-id"] == TOKEN[0]


async def test_a_box_past_its_lifetime_is_lost(make):
    async with make(lifetime_s=1) as runtime:
        assert "lifetime or idle time" in await lost(runtime)


async def test_an_idle_box_is_lost(make):
    async with make(idle_timeout_s=1) as runtime:
        assert "lifetime or idle time" in await lost(runtime)


async def test_a_failed_question_says_nothing_about_the_box_and_is_told(make, world, status, caplog):
    caplog.set_level("DEBUG", logger="rollwright.runtimes")
    world.fail("SandboxWaitV2", status.INVALID_ARGUMENT)
    async with make() as runtime:
        async with asyncio.timeout(PATIENCE_S):
            while "whether it has ended is asked again in 5 s: InvalidError" not in caplog.text:
                await asyncio.sleep(0.01)
        assert runtime.name in caplog.text
        assert (await runtime.run(["echo", "here"])).stdout == b"here\n"


async def test_a_box_that_the_vendor_ends_loses_what_runs_in_it(box, world):
    async with await box.open_process(["sh", "-c", "echo ready; sleep 1000"]) as process:
        assert await process.read() == b"ready\n"
        running = asyncio.create_task(box.run(["sleep", "1000"], timeout_s=1000))
        waiting = asyncio.create_task(process.wait(timeout_s=1000))
        await asyncio.sleep(0)
        await world.end(sandbox_of(world, box).id)
        for task in (running, waiting):
            with pytest.raises(RuntimeLost):
                async with asyncio.timeout(PATIENCE_S):
                    await task
    await lost(box)


async def test_a_start_that_is_cancelled_leaves_no_box(make, world, journal):
    """At every step of a start."""
    for step in ("AppGetOrCreate", "SandboxCreateV2", "after SandboxCreateV2", "TaskExecStart", "after TaskExecStart"):
        runtime = make(app=f"app-{step.split()[-1]}-{len(step)}")
        starting = asyncio.create_task(runtime.start())
        async with world.reached(step):
            starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert sandbox_of(world, runtime) is None, step
        assert list(journal.entries()) == [], step
        with pytest.raises(RuntimeLost):
            await runtime.run(["true"])


async def test_a_box_that_cannot_be_freed_stays_in_the_journal(make, world, status, journal):
    runtime = make()
    await runtime.start()
    world.fail("SandboxTerminateV2", status.PERMISSION_DENIED)
    with pytest.raises(RuntimeFault, match="could not end"):
        await runtime.stop()
    (entry,) = journal.entries()
    assert (entry.kind, entry.clues["sandbox"]) == ("modal", sandbox_of(world, runtime).id)
    from rollwright.runtimes.modal.sweep import sweep

    await sweep(entry.clues)
    await sweep(entry.clues)
    assert sandbox_of(world, runtime) is None
    journal.close(entry.name)


async def test_a_box_that_is_known_by_name_only_is_swept(make, world, journal):
    runtime = make()
    await runtime.start()
    (entry,) = journal.entries()
    from rollwright.runtimes.modal.sweep import sweep

    await sweep({**entry.clues, "sandbox": ""})
    assert sandbox_of(world, runtime) is None
    await runtime.stop()
