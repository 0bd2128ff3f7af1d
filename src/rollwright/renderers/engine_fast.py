"""Faster engines for vocabularies that they are proven to read alike. Neither is a dependency: `fastokens` encodes tens
of times faster and holds the GIL; `tiktoken` is some times faster and lets it go. Bytes and control strings come from
the reference in both, so only encoding differs."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
from tokenizers import Tokenizer

from rollwright.wire import UsageError
from rollwright.wire.arrays import Ids

from .engine_bytes import byte_level
from .engine_core import CoreEngine, Vocabulary, well_formed
from .engine_probe import prove_equal


def fast_engine(reference: CoreEngine, data: bytes, kind: str) -> CoreEngine:
    """An engine over the reference's vocabulary; UsageError if it is not installed, cannot read it, or differs."""
    engine = _ENGINES[kind](reference.vocabulary, data)
    try:
        prove_equal(engine, reference.vocabulary.encode_whole, list(reference.specials), kind)
    except UsageError:
        raise
    except Exception as error:  # The border to foreign code, which fails on odd text in ways of its own.
        raise UsageError(f"{kind} broke on the probe texts: {type(error).__name__}: {error}") from error
    return engine


class FastokensEngine(CoreEngine):
    kind = "fastokens"

    def __init__(self, vocabulary: Vocabulary, data: bytes) -> None:
        super().__init__(vocabulary)
        self._fast = _fastokens(data)

    def encode(self, text: str) -> Ids:
        ids, _ = self._fast.encode_batch_flat([well_formed(text)])
        return np.frombuffer(ids, np.int32)

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        ids, offsets = self._fast.encode_batch_flat([well_formed(text) for text in texts])
        column, ends = np.frombuffer(ids, np.int32), np.frombuffer(offsets, np.uint64).tolist()
        return [column[start:end] for start, end in pairwise(ends)]


class TiktokenEngine(CoreEngine):
    kind = "tiktoken"

    def __init__(self, vocabulary: Vocabulary, data: bytes) -> None:
        super().__init__(vocabulary)
        self._nfc = _normalizes(self._core)
        self._encoding = _tiktoken(self._core, self.content, self.specials)
        longest = sorted(self.specials, key=len, reverse=True)
        self._special = re.compile("(" + "|".join(map(re.escape, longest)) + ")") if longest else None

    def encode(self, text: str) -> Ids:
        text = well_formed(text)
        if self._nfc and not unicodedata.is_normalized("NFC", text):
            text = self._normal(text)
        ids: np.ndarray[Any, np.dtype[np.uint32]] = self._encoding.encode_to_numpy(text, allowed_special="all")
        return ids.astype(np.int32)

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        return [self.encode(text) for text in texts]

    def _normal(self, text: str) -> str:
        # Control strings are found first: normalizing over their edge could melt a `>` into the accent behind it.
        pieces = self._special.split(text) if self._special else [text]
        return "".join(piece if piece in self.specials else unicodedata.normalize("NFC", piece) for piece in pieces)


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise UsageError(f"the engine {name} needs a package; pip install 'rollwright[fast]'") from error


def _fastokens(data: bytes) -> Any:
    fastokens = _module("fastokens")
    try:
        return fastokens.Tokenizer.from_json_str(data.decode())
    except Exception as error:  # The library raises what its parts raise.
        raise UsageError(f"fastokens cannot read this tokenizer: {error}") from error


def _tiktoken(core: Tokenizer, content: str, specials: Mapping[str, int]) -> Any:
    tiktoken = _module("tiktoken")
    pattern = _pattern(core)
    vocabulary = core.get_vocab(with_added_tokens=False)
    ranks = {byte_level(token): id for token, id in vocabulary.items() if token not in specials}
    try:
        return tiktoken.Encoding(content, pat_str=pattern, mergeable_ranks=ranks, special_tokens=dict(specials))
    except Exception as error:  # As above.
        raise UsageError(f"tiktoken cannot hold this vocabulary: {error}") from error


def _pattern(core: Tokenizer) -> str:
    """The one expression that splits text into words, where the tokenizer has just that."""
    state = _state(core.pre_tokenizer)
    match state.get("pretokenizers"):
        case [
            {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ]:
            return pattern
    raise UsageError("tiktoken splits text by one expression, and this tokenizer splits in another way")


def _normalizes(core: Tokenizer) -> bool:
    state = _state(core.normalizer)
    if state.get("type") == "NFC":
        return True
    if state and state.get("normalizers") != []:
        raise UsageError("tiktoken does not normalize text, and this tokenizer does")
    return False


def _state(part: Any) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(part.__getstate__()) if part is not None else {}
    return found


_ENGINES = {"fastokens": FastokensEngine, "tiktoken": TiktokenEngine}
