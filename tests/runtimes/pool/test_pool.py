"""The pool with boxes that misbehave on command: whatever goes wrong, nobody gets a used box and every box ends."""

import asyncio
import logging

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollwright.runtimes.pool import CreationPaused, PoolClosed, PoolConfig, RuntimePool
from rollwright.wire import RuntimeFault, RuntimeLost, UsageError
from runtimes.pool.scripted_box import BoxConfig, World

CONFIG = BoxConfig()


@pytest.fixture
def world():
    return World()


def pool_of(world, **given):
    given.setdefault("create_per_s", 0)
    return RuntimePool(PoolConfig(**given), make=world.make)


async def rest(pool):
    """Until nothing is made, reset or ended."""
    async with asyncio.timeout(10):
        while pool._tasks:
            await asyncio.wait(set(pool._tasks))
            await asyncio.sleep(0)


async def test_a_box_is_used_again_and_nothing_of_the_last_user_is_left(world):
    async with pool_of(world) as pool:
        for _ in range(5):
            lease = pool.lease(CONFIG)
            async with lease as runtime:
                with pytest.raises(RuntimeFault):
                    await runtime.read("secret")
                await runtime.write("secret", b"mine")
            await rest(pool)
        assert (lease.number, lease.uses) == (5, 5)
        assert repr(pool) == "<RuntimePool 1 idle, 0 leased, 0 waiting; 1 made, 5 leases, 0 quarantined>"
        seen = pool.stats()
        assert (seen.hits, seen.misses, seen.creates, seen.resets) == (4, 1, 1, 5)
        assert 0 < seen.claim_p50_ms <= seen.claim_p99_ms
        assert 0 < seen.reset_p50_ms <= seen.reset_p99_ms
    assert world.all_freed()


async def test_what_a_reset_leaves_puts_the_box_into_quarantine(world, caplog):
    world.sticky.add("poison")
    async with pool_of(world) as pool:
        async with pool.lease(CONFIG) as runtime:
            await runtime.write("poison", b"x")
        await rest(pool)
        assert world.boxes[0].stopped
        async with pool.lease(CONFIG) as runtime:
            assert runtime.name == "box-2"
        assert pool.stats().quarantines == 1
    assert "box-1 is quarantined: after its reset, file poison is new" in caplog.text
    assert world.all_freed()


@pytest.mark.parametrize("what", ["reset", "inspect"])
async def test_a_reset_that_fails_or_hangs_ends_the_box(world, what):
    hang = asyncio.Event()
    async with pool_of(world, reset_timeout_s=0.05) as pool:
        for fault in (RuntimeFault("no"), ValueError("nonsense"), hang):
            async with pool.lease(CONFIG):
                world.faults[what] = [fault]
            await rest(pool)
        assert (pool.stats().quarantines, pool.stats().creates) == (3, 3)
    assert world.all_freed()


async def test_a_box_whose_reset_is_a_start_is_ended_and_another_is_made(world):
    once = BoxConfig(used_once=True)
    async with pool_of(world, max_boxes=2) as pool:
        for _ in range(3):
            async with pool.lease(once):
                pass
            await rest(pool)
        seen = pool.stats()
        assert (seen.creates, seen.hits, seen.idle, seen.resets, seen.quarantines) == (4, 2, 1, 0, 0)
        assert "reset" not in {what for what, _ in world.calls}
        world.faults["start"] = [RuntimeFault("no room")]
        async with pool.lease(once):
            pass
        await rest(pool)
        assert pool.stats().create_failures == 1, "the breaker hears of it"
    assert world.all_freed()


async def test_giving_back_does_not_wait_for_the_reset(world):
    slow = asyncio.Event()
    world.faults["reset"] = [slow]
    async with pool_of(world) as pool:
        async with pool.lease(CONFIG):
            pass
        assert "1 resetting" in repr(pool)
        slow.set()
        await rest(pool)
        assert "1 idle" in repr(pool)


async def test_a_lease_that_is_over_gives_no_access(world):
    async with pool_of(world) as pool:
        async with pool.lease(CONFIG) as runtime:
            for forbidden in (runtime.start, runtime.stop, runtime.reset):
                with pytest.raises(RuntimeFault, match="which alone may"):
                    await forbidden()
            assert await runtime.alive()
        await rest(pool)
        with pytest.raises(RuntimeLost, match="is over"):
            await runtime.write("late", b"x")
        assert not await runtime.alive()
        assert world.boxes[0].files == {}


async def test_a_write_that_was_cut_off_may_still_arrive_so_the_box_ends(world):
    world.faults["write"] = [asyncio.Event()]

    async def use(pool):
        async with pool.lease(CONFIG) as runtime:
            await runtime.write("big", b"x")

    async with pool_of(world) as pool:
        user = asyncio.create_task(use(pool))
        await world.until("write")
        user.cancel()
        with pytest.raises(asyncio.CancelledError):
            await user
        await rest(pool)
        assert (pool.stats().quarantines, pool.stats().idle) == (1, 0)
        assert ("reset", 1) not in world.calls
    assert world.all_freed()


@pytest.mark.parametrize("what", ["start", "inspect", "alive"])
async def test_a_claim_that_is_cancelled_leaves_no_box_behind(world, what):
    gate = asyncio.Event()
    world.faults[what] = [gate]
    async with pool_of(world) as pool:
        claim = asyncio.create_task(pool.lease(CONFIG).__aenter__())
        await world.until(what)
        claim.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claim
        gate.set()
        await rest(pool)
        assert (pool.stats().idle, pool.stats().leased, pool.stats().waiting) == (1, 0, 0)
        async with pool.lease(CONFIG) as runtime:
            assert runtime.name == "box-1"
    assert world.all_freed()


async def test_a_box_that_arrives_together_with_the_cancellation_is_not_lost(world):
    async with pool_of(world, max_boxes=1) as pool:
        async with pool.lease(CONFIG):
            claim = asyncio.create_task(pool.lease(CONFIG).__aenter__())
            await asyncio.sleep(0)
        while pool.stats().waiting:
            await asyncio.sleep(0)
        claim.cancel()  # The box was granted, and the waiter has not run yet.
        with pytest.raises(asyncio.CancelledError):
            await claim
        await rest(pool)
        assert (pool.stats().idle, pool.stats().leased) == (1, 0)


async def test_a_dead_box_is_replaced_before_it_is_handed_out(world):
    async with pool_of(world) as pool:
        async with pool.lease(CONFIG):
            pass
        await rest(pool)
        world.boxes[0].running = False
        async with pool.lease(CONFIG) as runtime:
            assert runtime.name == "box-2"
        world.faults["alive"] = [RuntimeFault("gone")]
        await rest(pool)
        async with pool.lease(CONFIG) as runtime:
            assert runtime.name == "box-3"
        assert pool.stats().deaths == 2
    assert world.all_freed()


async def test_configs_that_differ_do_not_share_boxes(world):
    async with pool_of(world) as pool:
        for image in ("a", "b", "a"):
            async with pool.lease(BoxConfig(image=image)):
                pass
            await rest(pool)
        assert [box.config.image for box in world.boxes] == ["a", "b"]


async def test_what_keeps_a_box_from_starting_is_told_to_whoever_asked(world):
    async with pool_of(world, create_tries=2, breaker_failures=3) as pool:
        world.faults["start"] = [OSError("no room"), RuntimeFault("no room")]
        with pytest.raises(RuntimeFault, match="no room"):
            await pool.lease(CONFIG).__aenter__()
        world.faults["start"] = [UsageError("no such image")]
        with pytest.raises(UsageError, match="no such image"):
            await pool.lease(CONFIG).__aenter__()
        with pytest.raises(CreationPaused, match="3 boxes in a row"):
            await pool.lease(CONFIG).__aenter__()
        assert (pool.stats().create_failures, pool.stats().creates) == (3, 0)
    assert world.all_freed()


async def test_a_start_has_a_deadline(world):
    world.faults["start"] = [asyncio.Event()]
    async with pool_of(world, start_timeout_s=0.02, create_tries=1) as pool:
        with pytest.raises(RuntimeFault, match=r"did not start within 0\.02 s"):
            await pool.lease(CONFIG).__aenter__()
    assert world.all_freed()


async def test_a_wait_has_a_deadline(world):
    async with pool_of(world, max_boxes=1, wait_s=0.02) as pool, pool.lease(CONFIG):
        with pytest.raises(RuntimeFault, match=r"no box was free within 0\.02 s: <RuntimePool 0 idle, 1 leased"):
            await pool.lease(CONFIG).__aenter__()
        assert pool.stats().waiting == 0


async def test_closing_ends_everything_at_every_stage(world, caplog):
    caplog.set_level(logging.INFO)
    pool = pool_of(world, max_boxes=4)
    held = pool.lease(CONFIG)
    runtime = await held.__aenter__()
    world.faults["reset"] = [asyncio.Event()]
    async with pool.lease(CONFIG), pool.lease(CONFIG):
        pass
    await world.until("reset")
    world.reached["start"].clear()
    world.faults["start"] = [asyncio.Event()]
    waiting = [asyncio.create_task(pool.lease(CONFIG).__aenter__()) for _ in range(4)]
    await world.until("start")
    assert "1 making, 1 resetting" in repr(pool)
    await pool.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert any(isinstance(result, PoolClosed) for result in results)
    with pytest.raises(PoolClosed):
        await pool.lease(CONFIG).__aenter__()
    with pytest.raises(RuntimeLost):
        await runtime.write("late", b"x")
    await held.__aexit__(None, None, None)
    await pool.close()
    assert world.all_freed()
    assert "0 idle, 0 leased, 0 waiting;" in repr(pool)
    assert [record.levelname for record in caplog.records if "the pool made" in record.message] == ["INFO"]


async def test_a_box_that_cannot_be_stopped_is_counted_and_holds_up_nobody(world, caplog):
    async with pool_of(world, max_boxes=1, max_uses=1) as pool:
        world.faults["stop"] = [RuntimeFault("stuck")]
        for _ in range(2):
            async with pool.lease(CONFIG):
                pass
        await rest(pool)
        assert pool.stats().unfreed == 1
    assert "box-1 was not cleaned away: stuck" in caplog.text


async def test_warm_boxes_are_made_before_anybody_asks(world):
    async with pool_of(world, min_warm=3) as pool:
        pool.expect(CONFIG)
        await rest(pool)
        assert pool.stats().idle == 3
        async with pool.lease(CONFIG):
            assert pool.stats().hits == 1
            await rest(pool)
            assert pool.stats().idle == 3


async def test_idle_boxes_end_by_themselves(world):
    async with pool_of(world, idle_ttl_s=0.01) as pool:
        async with pool.lease(CONFIG):
            pass
        async with asyncio.timeout(10):
            while not world.all_freed():
                await world.until("stop")
                await rest(pool)
        assert (pool.stats().evictions, pool.stats().ending) == (1, 0)


async def test_many_configs_leave_no_memory_behind(world):
    async with pool_of(world, max_uses=1) as pool:
        for number in range(400):
            async with pool.lease(BoxConfig(image=str(number))):
                pass
            await rest(pool)
        assert len(pool._configs) < 80
        assert pool._placement.shelves == {}


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["ok", "cancel", "raise", "poison", "dead", "unstartable"]), min_size=1, max_size=25))
def test_whatever_users_do_every_lease_finds_a_clean_box(endings):
    async def use(pool, world, ending):
        async with pool.lease(CONFIG) as runtime:
            box = world.boxes[int(runtime.name[4:]) - 1]
            assert box.files == {}
            assert not box.resetting
            box.files["trace"] = "x"
            if ending == "poison":
                box.files["sticky"] = "x"
            await asyncio.sleep(0)
            assert set(box.files) <= {"trace", "sticky"}
            if ending == "dead":
                box.running = False
            elif ending == "unstartable":
                world.faults.setdefault("start", []).append(RuntimeFault("no"))
            elif ending == "cancel":
                asyncio.current_task().cancel()
                await asyncio.sleep(0)
            elif ending == "raise":
                raise KeyError(ending)

    async def main():
        world = World()
        world.sticky.add("sticky")
        async with pool_of(world, max_boxes=3) as pool:
            results = await asyncio.gather(*(use(pool, world, ending) for ending in endings), return_exceptions=True)
            await rest(pool)
            assert pool.stats().leased == pool.stats().waiting == 0
        unexpected = [r for r in results if not isinstance(r, KeyError | asyncio.CancelledError | RuntimeFault | None)]
        assert unexpected == []
        assert world.all_freed()

    asyncio.run(main())


def test_settings_are_checked():
    assert msgspec.convert({"max_boxes": 3}, PoolConfig).shelf_room == 3
    for wrong in ({"max_boxes": 0}, {"min_warm": -1}, {"wait_s": 0}, {"max_age_s": float("nan")}, {"create_per_s": -1}):
        with pytest.raises(UsageError, match=f"pool.{next(iter(wrong))} is"):
            PoolConfig(**wrong)
