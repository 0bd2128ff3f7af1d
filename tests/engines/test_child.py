"""A child of any kind: its words are kept within a bound, its death is told, its end is not torn by a cancellation."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from rollwright.engines.child import Child

IDLE = "import sys; sys.stdin.read()"
TALKER = "import os; os.write(2, '\\n'.join(map(str, range(1000))).encode()); os._exit(7)"


async def child_that(code: str, log_lines: int = 3) -> Child:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdin=pipe, stderr=pipe)
    return Child(process, "talker", log_lines=log_lines)


async def test_the_newest_words_of_the_dead_are_told() -> None:
    child = await child_that(TALKER)
    try:
        await asyncio.wait_for(child.died(), 20)
        assert child.obituary() == "the talker died (exit code 7); it said: 997 | 998 | 999"
    finally:
        await child.end()


async def test_the_living_have_no_obituary() -> None:
    child = await child_that(IDLE)
    assert child.alive
    assert child.obituary() is None
    await child.end()
    assert child.obituary() == f"the talker died (exit code {-signal.SIGKILL}); it said nothing"
    await child.end()


async def test_an_end_that_is_cancelled_still_ends_the_child() -> None:
    child = await child_that(IDLE)
    ending = asyncio.create_task(child.end())
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert not child.alive
