"""Images by content: once in memory, beyond the budget on disk, and gone with the last who holds them."""

from __future__ import annotations

import threading
from base64 import b64encode
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.dialects import ImageStore
from rollwright.wire import Image, WireError

SHOT = bytes(range(256)) * 800
"""200 KB."""


def text(data: bytes) -> str:
    return b64encode(data).decode()


def files(store: ImageStore) -> list[Path]:
    return [] if store._directory is None else sorted(store._directory.path.iterdir())


def test_a_screenshot_that_is_sent_45_times_is_kept_once():
    with ImageStore() as store:
        images = {store.hold().put_text(text(SHOT), "image/png")[0] for _ in range(45)}
        assert len(images) == len(store) == 1
        assert store.memory_bytes == len(text(SHOT))
        assert store.get(images.pop()) == SHOT


@given(st.binary(max_size=40) | st.binary(min_size=5000, max_size=5002))
def test_what_was_put_is_what_is_got(data):
    with ImageStore() as store:
        image, digest = store.put_text(text(data), "image/png")
        assert image == store.put(data, "image/png")
        assert (store.get(image), store.get_text(image)) == (data, text(data).encode())
        assert store.resident(image) == text(data).encode()
        assert bool(digest) == (len(data) > 4000)


def test_base64_with_stray_bits_is_the_same_image_but_not_the_same_text():
    data = SHOT[:4999]
    stray = text(data)[:-3] + {"A": "B", "Q": "R", "g": "h", "w": "x"}[text(data)[-3]] + "=="
    with ImageStore() as store:
        image, digest = store.put_text(stray, "image/png")
        assert digest == b""
        assert store.get_text(image) == text(data).encode()


def test_beyond_the_budget_the_oldest_go_to_disk_and_come_back():
    with ImageStore(budget_bytes=3 * len(text(SHOT))) as store:
        shots = [bytes([number]) + SHOT[1:] for number in range(8)]
        images = [store.put(shot, "image/png") for shot in shots]
        assert store.memory_bytes <= 3 * len(text(SHOT))
        assert len(files(store)) == 5
        assert [store.resident(image) is None for image in images] == [True] * 5 + [False] * 3
        assert [store.get(image) for image in images] == shots
        assert repr(store) == f"<ImageStore 3 in memory ({store.memory_bytes} bytes), 5 on disk>"
        directory = store._directory.path
    assert directory is not None
    assert not directory.exists()


@pytest.mark.parametrize("budget", [0, 2**30], ids=["on disk", "in memory"])
def test_an_image_goes_with_the_last_who_holds_it(budget):
    with ImageStore(budget) as store:
        first, second = store.hold(), store.hold()
        shared = first.put(SHOT, "image/png")
        assert second.put_text(text(SHOT), "image/png")[0] == shared
        own = first.put(SHOT[1:], "image/png")
        first.close()
        first.close()
        assert second.get(shared) == SHOT
        with pytest.raises(WireError, match="not in this store of 1 images"):
            store.get(own)
        second.close()
        assert (len(store), store.memory_bytes, files(store)) == (0, 0, [])
        assert not store._by_text


def test_a_store_that_was_closed_has_nothing():
    store = ImageStore(0)
    image = store.put(SHOT, "image/png")
    store.close()
    store.close()
    with pytest.raises(WireError, match="not in this store"):
        store.get(image)
    assert store.resident(image) is None


@pytest.mark.parametrize("kind", ["text/html", "image/", "image/" + "x" * 50, "", "image/png\n"])
def test_what_is_no_image_is_refused(kind):
    with ImageStore() as store, pytest.raises(WireError, match="media type"):
        store.put_text(text(SHOT), kind)


@pytest.mark.parametrize("encoded", ["a===", "Y Q==", "YQ", "é" * 5000, "\ud800" * 5000, "!" * 5000])
def test_what_is_no_base64_is_refused(encoded):
    with ImageStore() as store:
        with pytest.raises(WireError, match="base64"):
            store.put_text(encoded, "image/png")
        assert len(store) == 0


def test_a_disk_that_is_full_is_told(monkeypatch):
    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with ImageStore(0) as store, pytest.raises(WireError, match=r"no room.*No space left"):
        store.put(SHOT, "image/png")


def test_threads_may_share_a_store():
    with ImageStore(budget_bytes=4 * len(text(SHOT))) as store:
        missing: list[Image] = []

        def use(number: int) -> None:
            for turn in range(20):
                hold = store.hold()
                data = bytes([number, turn % 5]) + SHOT[2:]
                image = hold.put_text(text(data), "image/png")[0]
                if hold.get(image) != data:
                    missing.append(image)
                hold.close()

        threads = [threading.Thread(target=use, args=(number % 3,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert missing == []
        assert (len(store), store.memory_bytes, files(store)) == (0, 0, [])
