"""Law 12: a wave of requests is let in over several turns of the loop, in order; what trickles in never waits."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from rollwright.intercept.turnstile import AT_ONCE, TURN_S, Turnstile


class Work:
    """Requests that take `cost_s` of a clock that only they move, and the longest turn of the loop."""

    def __init__(self, cost_s):
        self.now = 0.0
        self.cost_s = cost_s
        self.order = []
        self.turnstile = Turnstile(clock=lambda: self.now)
        self.turns = []

    async def request(self, number):
        await self.turnstile.enter()
        self.order.append(number)
        self.now += self.cost_s

    async def watch(self):
        while True:
            before = self.now
            await asyncio.sleep(0)
            self.turns.append(self.now - before)


async def test_a_wave_is_spread_over_turns():
    work = Work(0.001)
    watching = asyncio.create_task(work.watch())
    await asyncio.gather(*(work.request(number) for number in range(256)))
    watching.cancel()
    assert work.order == list(range(256))
    assert max(work.turns) <= TURN_S + AT_ONCE * work.cost_s
    assert repr(work.turnstile) == "<Turnstile 0 waiting>"


async def test_what_trickles_in_does_not_wait():
    work = Work(0.0001)
    for number in range(20):
        entering = work.request(number)
        try:
            entering.send(None)
        except StopIteration:
            await asyncio.sleep(0)
            continue
        raise AssertionError(f"request {number} had to wait")
    assert len(work.order) == 20


@given(st.lists(st.booleans(), max_size=60))
def test_whoever_leaves_the_queue_holds_nobody_up(leaves):
    async def main():
        work = Work(0.01)
        tasks = [asyncio.create_task(work.request(number)) for number in range(len(leaves))]
        await asyncio.sleep(0)
        for task, leave in zip(tasks, leaves, strict=True):
            if leave:
                task.cancel()
        async with asyncio.timeout(10):
            await asyncio.gather(*tasks, return_exceptions=True)
        stayed = [number for number, task in enumerate(tasks) if not task.cancelled()]
        assert work.order == stayed
        await asyncio.sleep(0)
        assert repr(work.turnstile) == "<Turnstile 0 waiting>"

    asyncio.run(main())
