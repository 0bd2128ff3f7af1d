"""A child of any kind: its words are kept within a bound and passed on in whole lines, its death is told, its end is
not torn by a cancellation."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.engines.child import MAX_LINE_BYTES, Child, WholeLines

IDLE = "import sys; sys.stdin.read()"
STAMMERER = "import os; [os.write(2, letter) for letter in (b'ab', b'cd', b'\\nef', b'g')]"
TALKER = "import os; os.write(2, '\\n'.join(map(str, range(1000))).encode()); os._exit(7)"


async def child_that(code: str, log_lines: int = 3, heard: Callable[[str], None] | None = None) -> Child:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdin=pipe, stderr=pipe)
    return Child(process, "talker", log_lines=log_lines, heard=heard)


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


async def test_what_it_says_is_passed_on_in_whole_lines() -> None:
    heard: list[str] = []
    child = await child_that(STAMMERER, heard=heard.append)
    try:
        await asyncio.wait_for(child.died(), 20)
        assert heard == ["abcd", "efg"]
        assert child.last_words == "it said: abcd | efg"
    finally:
        await child.end()


SAID = st.lists(st.sampled_from([b"", b"a", b"bc", b"x" * (MAX_LINE_BYTES - 1), b"y" * MAX_LINE_BYTES * 2]), max_size=6)


@given(SAID, st.lists(st.integers(1, 3 * MAX_LINE_BYTES), max_size=8), st.booleans())
def test_chunk_borders_change_no_line_and_nothing_is_held_without_bound(
    lines: list[bytes], cuts: list[int], ended: bool
) -> None:
    data = b"\n".join(lines) + (b"\n" if ended else b"")
    whole, reader, got = WholeLines(), WholeLines(), []
    for size in [*cuts, len(data) + 1]:
        got += reader.feed(data[:size])
        data = data[size:]
        assert len(reader._rest) <= MAX_LINE_BYTES
    expected = whole.feed(b"\n".join(lines) + (b"\n" if ended else b""))
    assert got == expected
    assert reader.rest() == whole.rest()
    assert b"".join([*got, *reader.rest()]) == b"".join(expected)
    assert all(len(line) <= MAX_LINE_BYTES for line in got)
