"""Images by content, kept once: in memory within a byte budget, beyond it in files of a directory of its own.

A rollout holds what it put: when its hold closes, what nobody else holds is gone, from memory and from disk. The oldest
images leave memory first. A put writes at most what it brings and one image more, and only where the budget is spent;
such files are read from the page cache. What a killed process left on disk, the next one sweeps (`spills`). Calls from
several threads are safe."""

from __future__ import annotations

import contextlib
import os
from hashlib import sha256
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

from rollwright.wire import Image, WireError

from .images import check_media_type, decode, encode, is_canonical
from .spills import SpillDirectory

BUDGET_BYTES = 32 * 2**20
_CUT_OUT_CHARS = 4096
"""Shorter images stay in the text of a request: cutting one out costs more than it saves."""


class _Kept:
    """One content: its base64 while it is in memory, and how many hold it."""

    __slots__ = ("digest", "holders", "size", "text")

    def __init__(self, text: bytes, digest: bytes) -> None:
        self.text: bytes | None = text
        self.size = len(text)
        self.digest = digest
        """Of the text that it came in; empty if that was other than `text`, or short."""
        self.holders = 0


class ImageStore:
    """What is put into the store itself is held until it closes; rollouts put into a `hold`."""

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        self.budget_bytes = budget_bytes
        """Of images in memory; the others lie on disk."""
        self._kept: dict[str, _Kept] = {}
        self._in_memory: dict[str, _Kept] = {}
        """The oldest first."""
        self._by_text: dict[bytes, str] = {}
        self._memory_bytes = 0
        self._directory: SpillDirectory | None = None
        self._lock = Lock()
        self._own: set[str] = set()

    def __repr__(self) -> str:
        on_disk = len(self._kept) - len(self._in_memory)
        return f"<ImageStore {len(self._in_memory)} in memory ({self._memory_bytes} bytes), {on_disk} on disk>"

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def memory_bytes(self) -> int:
        return self._memory_bytes

    def hold(self) -> ImageHold:
        """A place to put images that lets go of them when it is closed."""
        return ImageHold(self)

    def put(self, data: bytes, media_type: str) -> Image:
        return self._put(data, media_type, self._own)

    def put_text(self, encoded: str, media_type: str) -> tuple[Image, bytes]:
        return self._put_text(encoded, media_type, self._own)

    def get(self, image: Image) -> bytes:
        return decode(self.get_text(image).decode("ascii"), image.media_type)

    def get_text(self, image: Image) -> bytes:
        with self._lock:
            kept = self._kept.get(image.sha256)
            if kept is None:
                raise WireError(f"image {image.sha256[:12]} is not in this store of {len(self._kept)} images")
            return kept.text if kept.text is not None else self._path(image.sha256).read_bytes()

    def resident(self, image: Image) -> bytes | None:
        kept = self._kept.get(image.sha256)
        return kept.text if kept is not None else None

    def close(self) -> None:
        """Let go of everything, held or not. Idempotent."""
        with self._lock:
            directory, self._directory = self._directory, None
            self._kept.clear()
            self._in_memory.clear()
            self._by_text.clear()
            self._own.clear()
            self._memory_bytes = 0
        if directory is not None:
            directory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # For holds.

    def _put(self, data: bytes, media_type: str, held: set[str]) -> Image:
        check_media_type(media_type)
        name = sha256(data).hexdigest()
        if not self._hold(name, held):
            self._hold(name, held, _Kept(encode(data), b""))
        return Image(name, media_type)

    def _put_text(self, encoded: str, media_type: str, held: set[str]) -> tuple[Image, bytes]:
        check_media_type(media_type)
        if len(encoded) < _CUT_OUT_CHARS:
            return self._put(decode(encoded, media_type), media_type, held), b""
        text = encoded.encode("utf-8", "replace")
        digest = sha256(text).digest()
        # A text that was seen before is not decoded again.
        known = self._by_text.get(digest)
        if known is not None and self._hold(known, held):
            return Image(known, media_type), digest
        data = decode(encoded, media_type)
        name = sha256(data).hexdigest()
        if not is_canonical(encoded, data):
            return self._put(data, media_type, held), b""
        self._hold(name, held, _Kept(text, digest))
        return Image(name, media_type), digest

    def _hold(self, name: str, held: set[str], new: _Kept | None = None) -> bool:
        """Hold what is kept under a name, and keep `new` there if nothing is. Says whether there is something now."""
        with self._lock:
            kept = self._kept.get(name)
            if kept is None:
                if new is None:
                    return False
                kept = self._kept[name] = self._in_memory[name] = new
                self._memory_bytes += new.size
            if new is not None and new.digest:
                kept.digest = new.digest
                self._by_text[new.digest] = name
            if name not in held:
                held.add(name)
                kept.holders += 1
            while self._memory_bytes > self.budget_bytes:
                self._spill(next(iter(self._in_memory)))
            return True

    def _spill(self, name: str) -> None:
        kept = self._in_memory[name]
        try:
            if self._directory is None:
                self._directory = SpillDirectory()
            self._path(name).write_bytes(kept.text or b"")
        except OSError as error:
            raise WireError(f"there is no room for another image: {error.strerror}") from error
        self._forget_text(name)

    def _forget_text(self, name: str) -> None:
        kept = self._in_memory.pop(name)
        kept.text = None
        self._memory_bytes -= kept.size

    def _path(self, name: str) -> Path:
        if self._directory is None:
            raise WireError(f"image {name[:12]} is not in this store, which was closed")
        return self._directory.path / name

    def _let_go(self, held: set[str]) -> None:
        with self._lock:
            for name in held:
                kept = self._kept.get(name)
                if kept is None:
                    continue
                kept.holders -= 1
                if not kept.holders:
                    self._drop(name, kept)
            held.clear()

    def _drop(self, name: str, kept: _Kept) -> None:
        del self._kept[name]
        self._by_text.pop(kept.digest, None)
        if kept.text is not None:
            self._forget_text(name)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(name))


class ImageHold:
    """The images of one rollout. It reads what anyone put; closing it lets go of what was put here."""

    def __init__(self, store: ImageStore) -> None:
        self._store = store
        self._held: set[str] = set()
        self.get = store.get
        self.get_text = store.get_text
        self.resident = store.resident

    def __len__(self) -> int:
        return len(self._held)

    def put(self, data: bytes, media_type: str) -> Image:
        return self._store._put(data, media_type, self._held)

    def put_text(self, encoded: str, media_type: str) -> tuple[Image, bytes]:
        return self._store._put_text(encoded, media_type, self._held)

    def close(self) -> None:
        """Idempotent. What is put afterwards is held again."""
        self._store._let_go(self._held)
