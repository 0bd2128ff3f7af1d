"""Text to token ids and back, and nothing of chats: one engine per process and tokenizer content.

An engine is built once, by the thread that asks first, and never changed after; whoever asks meanwhile waits for it. So
a pool of renderers costs one tokenizer, and no caller can put truncation or padding under another. Any number of
threads may use one engine at once.

What this file does not do: it knows no roles, templates or stop sets. Those are the families' tables.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Literal, Protocol

from rollwright.wire import UsageError
from rollwright.wire.arrays import Ids

Source = str | Path | bytes
EngineKind = Literal["tokenizers", "fastokens", "tiktoken", "auto"]

_BUILD_TIMEOUT_S = 600.0
_log = logging.getLogger(__name__)


class TokenEngine(Protocol):
    """One vocabulary. No call changes it, and every call may come from any thread."""

    @property
    def kind(self) -> str:
        """The implementation: tokenizers, fastokens or tiktoken."""
        ...

    @property
    def content(self) -> str:
        """The sha256 of the tokenizer's file. Engines of one content give the same ids."""
        ...

    @property
    def specials(self) -> Mapping[str, int]:
        """Every added token of the file by its text. Some vocabularies list plain text here too (runs of newlines, HTML
        tags), so a family's table says which of them are control strings."""
        ...

    @property
    def reserved(self) -> frozenset[str]:
        """Those of `specials` that the file marks as special."""
        ...

    @property
    def size(self) -> int:
        """One more than the largest id."""
        ...

    def encode(self, text: str) -> Ids:
        """Added tokens inside `text` are recognised, as the model's own template would have them; nothing is put before
        or after. The GIL is free meanwhile where the implementation can."""
        ...

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        """Each text on its own, in one call."""
        ...

    def decode(self, ids: Ids) -> str:
        """The tokens' bytes as text. Bytes that are no UTF-8 become U+FFFD; control strings are kept."""
        ...

    def token_bytes(self, id: int) -> bytes:
        """The bytes that one token stands for; none for an id that the vocabulary has no text for."""
        ...

    def special(self, text: str) -> int:
        """The id of a control string; UsageError if the vocabulary has no such token."""
        ...


def load_engine(source: Source, *, kind: EngineKind = "tokenizers") -> TokenEngine:
    """The engine of a `tokenizer.json`: its path, its directory, or its bytes. Blocks for about a second when it is the
    first of its content; later calls give the same object. `auto` takes the fastest installed implementation whose ids
    are proven equal, and `tokenizers` if there is none; a kind that is asked for by name and gives other ids raises."""
    data = _read(source)
    return _load(data, hashlib.sha256(data).hexdigest(), kind)


class _Flights:
    """Each key is built once, by whoever comes first. A build that failed is forgotten, so it can be tried again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._futures: dict[tuple[str, str], Future[TokenEngine]] = {}

    def take(self, key: tuple[str, str], build: Builder) -> TokenEngine:
        with self._lock:
            future = self._futures.get(key)
            first = future is None
            if future is None:
                future = self._futures[key] = Future()
        if first:
            self._fly(key, future, build)
        return future.result(timeout=_BUILD_TIMEOUT_S)

    def _fly(self, key: tuple[str, str], future: Future[TokenEngine], build: Builder) -> None:
        try:
            future.set_result(build())
        except BaseException as error:
            with self._lock:
                del self._futures[key]
            future.set_exception(error)


class Builder(Protocol):
    def __call__(self) -> TokenEngine: ...


_flights = _Flights()


def _load(data: bytes, content: str, kind: str) -> TokenEngine:
    return _flights.take((content, kind), lambda: _build(data, content, kind))


def _read(source: Source) -> bytes:
    if isinstance(source, bytes):
        return source
    path = Path(source)
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"the tokenizer {str(path)!r} cannot be read: {error.strerror or error}") from error


def _build(data: bytes, content: str, kind: str) -> TokenEngine:
    # The implementations are imported when they are asked for: settings alone need none of them.
    from .engine_core import CoreEngine, Vocabulary
    from .engine_fast import fast_engine

    if kind == "tokenizers":
        return CoreEngine(Vocabulary(data, content))
    if kind in ("fastokens", "tiktoken"):
        reference = _load(data, content, "tokenizers")
        assert isinstance(reference, CoreEngine)
        return fast_engine(reference, data, kind)
    if kind != "auto":
        raise UsageError(f"tokenizer engine {kind!r} is not known; use tokenizers, fastokens, tiktoken or auto")
    for fast in ("fastokens", "tiktoken"):
        try:
            return _load(data, content, fast)
        except UsageError as error:
            _log.info("not using %s: %s", fast, error)
    return _load(data, content, "tokenizers")
