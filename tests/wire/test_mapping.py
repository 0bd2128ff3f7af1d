"""Mapped files: what they show, how long they live, and what they do not hold."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from rollwright.wire import WireError
from rollwright.wire.mapping import Home, _giver, _libc, home_of, map_file


def maps_of(path: Path) -> int:
    return sum(path.name in line for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="maps are counted in /proc, which is not here")
def test_a_map_lives_as_long_as_its_views_and_holds_no_descriptor(tmp_path):
    path = tmp_path / "bytes-of-a-test"
    path.write_bytes(bytes(range(256)) * 64)
    before = len(os.listdir("/proc/self/fd"))
    view = np.frombuffer(map_file(path)[256:512], np.uint8)
    assert len(os.listdir("/proc/self/fd")) == before
    path.unlink()
    gc.collect()
    assert maps_of(path) == 1
    assert view.tolist() == list(range(256))
    del view
    gc.collect()
    let_the_giver_finish()
    assert maps_of(path) == 0


def let_the_giver_finish() -> None:
    done = threading.Event()
    _giver.later.put(done.set)
    assert done.wait(10)


def test_pages_are_given_back_by_a_thread_of_its_own(tmp_path, monkeypatch):
    """Never by whoever held the last view: that may be an event loop, and it may take a second."""
    givers = []
    munmap = _libc().munmap
    monkeypatch.setattr(
        _libc(), "munmap", lambda *where: (givers.append(threading.current_thread().name), munmap(*where))
    )
    (tmp_path / "f").write_bytes(b"abc")
    view = map_file(tmp_path / "f")
    del view
    gc.collect()
    let_the_giver_finish()
    assert givers == ["unmapping"]


def test_memory_of_a_file_knows_its_place(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(bytes(range(100)))
    mapped = map_file(path)
    array = np.frombuffer(mapped[10:], "<u2")[5:15]
    home = home_of(array.view(np.uint8).data[2:])
    assert home == Home(path, (path.stat().st_dev, path.stat().st_ino), 22)
    assert array[1] == 22 + 23 * 256
    assert home_of(mapped[:0]) is None
    assert home_of(memoryview(b"abc")) is None
    assert home_of(np.zeros(3, np.uint8).data) is None
    assert home_of(map_file(path, private=True)) is None


def test_a_shared_map_cannot_be_written_and_a_private_one_changes_no_file(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    with pytest.raises(TypeError, match="read-only"):
        map_file(path)[0] = 1
    private = map_file(path, private=True)
    private[0] = ord("x")
    assert bytes(private) == b"xbc"
    assert path.read_bytes() == b"abc"


def test_what_cannot_be_mapped_is_told(tmp_path):
    (tmp_path / "empty").touch()
    with pytest.raises(WireError, match="empty is empty"):
        map_file(tmp_path / "empty")
    with pytest.raises(FileNotFoundError):
        map_file(tmp_path / "none")
