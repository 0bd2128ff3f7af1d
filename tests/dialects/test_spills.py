"""What a killed process spilled is removed by the next one, and nothing that anybody uses."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rollwright.dialects import ImageStore, left_spills, sweep_spills
from rollwright.dialects.spills import SpillDirectory

SPILLER = """
import sys
from rollwright.dialects import ImageStore
store = ImageStore(0)
store.put(b"x" * 5000, "image/png")
print(store._directory.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory for temporary files that this test has for itself."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def spiller():
    return subprocess.Popen([sys.executable, "-c", SPILLER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_what_a_killed_process_left_is_swept_and_what_a_living_one_uses_is_not(place):
    with spiller() as killed, spiller() as living:
        left, used = (Path(process.stdout.readline().strip()) for process in (killed, living))
        assert sweep_spills() == 0
        killed.send_signal(signal.SIGKILL)
        killed.wait(30)
        assert (left.exists(), used.exists()) == (True, True)
        assert left_spills() == [left]
        assert sweep_spills() == 1
        assert (left.exists(), used.exists()) == (False, True)
        assert sweep_spills() == 0
        living.kill()


def test_a_store_of_this_process_is_in_use(place):
    with ImageStore(0) as store:
        image = store.put(b"x" * 5000, "image/png")
        assert sweep_spills() == 0
        assert store.get(image) == b"x" * 5000
    assert list(place.iterdir()) == []


def test_what_is_not_ours_is_left_alone(place):
    (place / "rollwright-images-file").write_text("not a directory")
    (place / "elsewhere").mkdir()
    (place / "rollwright-images-link").symlink_to(place / "elsewhere")
    (place / "another").mkdir()
    before = sorted(place.iterdir())
    assert sweep_spills() == 0
    assert sorted(place.iterdir()) == before


def test_a_directory_that_is_swept_before_its_lock_is_held_is_made_anew(place, monkeypatch):
    """As if another process swept right before each of the two steps to the lock."""
    make, lock, swept = tempfile.mkdtemp, fcntl.flock, []

    def swept_when_made(**options):
        made = make(**options)
        if not swept:
            swept.append(sweep_spills())
        return made

    def swept_when_opened(fd, how):
        if len(swept) == 1:
            swept.append(0)
            swept[1] = sweep_spills()
        return lock(fd, how)

    monkeypatch.setattr(tempfile, "mkdtemp", swept_when_made)
    directory = SpillDirectory()
    assert swept == [1]
    monkeypatch.setattr(fcntl, "flock", swept_when_opened)
    another = SpillDirectory()
    assert swept == [1, 1]
    assert sorted(place.iterdir()) == sorted([directory.path, another.path])
    assert sweep_spills() == 0
    for one in (directory, another, another):
        one.close()
    assert list(place.iterdir()) == []
