"""Looks at a subprocess box, the poisoner, and how differences are told."""

import asyncio
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.runtimes import SubprocessConfig, SubprocessRuntime
from rollwright.runtimes.local import inspection, landlock
from rollwright.runtimes.local.inspection import files_below
from rollwright.runtimes.state import BoxState, differences, told
from rollwright.runtimes.testing import check_unpoisoned, poison, sh

words = st.dictionaries(st.text("abc", min_size=1, max_size=3), st.text("xy", max_size=2), max_size=5)
sets = st.lists(st.text("pq", min_size=1, max_size=2), max_size=4).map(tuple)
states = st.builds(BoxState, words, sets, sets, words, sets)


@given(states, states)
def test_only_equal_states_do_not_differ(one, other):
    same = (one.files, one.environment) == (other.files, other.environment) and all(
        sorted(getattr(one, what)) == sorted(getattr(other, what)) for what in ("processes", "ports", "mounts")
    )
    assert (differences(one, other) == []) is same
    assert len(differences(one, other)) == len(differences(other, one))


def test_a_log_line_tells_a_few():
    assert told([str(number) for number in range(7)]) == "0; 1; 2; 3; 4 and 2 more"


@pytest.mark.parametrize(
    "change",
    [
        "echo y > kept",
        "chmod 600 kept",
        "touch -d @5 kept",
        "rm kept",
        "mv kept moved",
        "rm kept; ln -s /etc/passwd kept",
        "rm kept; mkfifo kept",
        "ln -s nowhere new",
        "mkdir new",
        'echo x > "$HOME/.profile"',
        'chmod 755 "$HOME"',
        "chmod 711 ..",
        "echo x > ../beside",
        'rmdir "$TMPDIR"',
        'mv "$HOME" "$HOME-moved"; mkdir -m 700 "$HOME"',
        "sleep 1000 > /dev/null 2>&1 &",
    ],
)
async def test_every_change_shows_and_no_reset_leaves_it(box, change):
    fresh = await box.inspect()
    await box.write("kept", b"x")
    before = await box.inspect()
    await sh(box, "cat kept; : < kept")
    assert differences(before, await box.inspect()) == [], "reading changes nothing"
    await sh(box, change)
    assert differences(before, await box.inspect()) != []
    await box.reset()
    assert differences(fresh, await box.inspect()) == []


async def test_ports_are_those_of_the_box(box):
    listen = "import socket,time; s=socket.create_server(('127.0.0.1',0)); print(s.getsockname()[1]); time.sleep(1000)"
    async with await box.open_process([sys.executable, "-uc", listen]) as process:
        port = int(await process.read(100))
        assert (await box.inspect()).ports == (f"tcp 0100007F:{port:04X}",)
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        async with server:
            assert len((await box.inspect()).ports) == 1, "a port of the host is not the box's"


def test_a_great_tree_is_told_in_few_words(tmp_path):
    for number in range(30):
        (tmp_path / f"d{number}").mkdir()
        (tmp_path / f"d{number}" / "file").touch()
    assert len(files_below(str(tmp_path))) == 61
    assert "..." not in files_below(str(tmp_path), most=60)
    cut = files_below(str(tmp_path), most=20)
    assert cut["..."] == "over 20 entries"
    assert len(cut) < 25


async def test_a_tree_too_deep_to_be_named_is_no_fresh_one(box):
    fresh = await box.inspect()
    nest = "import os\nfor _ in range(1100): os.mkdir('d' * 8); os.chdir('d' * 8)"
    assert (await box.run([sys.executable, "-c", nest])).ok
    now = await box.inspect()
    assert any(word.startswith("unreadable") for word in now.files.values())
    await box.reset()
    assert differences(fresh, await box.inspect()) == []


@pytest.mark.skipif(not landlock.available(), reason="without landlock a subprocess box does not keep poison in")
async def test_a_poisoned_box_is_clean_after_its_reset(tmp_path):
    async with SubprocessRuntime(SubprocessConfig(directory=str(tmp_path))) as box:
        fresh = await box.inspect()
        await check_unpoisoned(box, fresh)
        tried = await poison(box, files=inspection.MOST_FILES + 100, fill_mb=1)
        assert len(tried) == 9
        poisoned = await box.inspect()
        assert len(poisoned.processes) >= 3
        assert len(poisoned.ports) == 1
        with pytest.raises(AssertionError, match="differs from a fresh one"):
            await check_unpoisoned(box, fresh)
        await box.reset()
        await check_unpoisoned(box, fresh)


async def test_the_check_looks_from_inside_too(box):
    """A look from outside that sees nothing must not be believed alone."""
    blind = await box.inspect()
    box.inspect = lambda: asyncio.sleep(0, blind)
    await sh(box, "mkdir tree")
    with pytest.raises(AssertionError, match=r"left for the next user: \./tree"):
        await check_unpoisoned(box, blind)
    await box.reset()
    await check_unpoisoned(box, blind)
    await sh(box, f"setsid sh -c 'sleep 1000; :' rollwright-poison-{box.name} > /dev/null 2>&1 &")
    with pytest.raises(AssertionError, match=r"left for the next user: /proc/\d+/cmdline"):
        await check_unpoisoned(box, blind)


def test_a_second_mount_at_the_same_place_is_a_difference():
    once, twice = BoxState(mounts=("/tmp tmpfs",)), BoxState(mounts=("/tmp tmpfs", "/tmp tmpfs"))
    assert differences(once, twice) == ["mounts: /tmp tmpfs is new"]
    assert differences(twice, once) == ["mounts: /tmp tmpfs is gone"]
