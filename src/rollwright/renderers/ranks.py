"""Vocabularies that come as ranks (`.tiktoken`, `tiktoken.model`: one base64 token and its rank per line), written as a
`tokenizer.json`, so that one kind of engine serves them all. The pattern and the control strings are not in such a file
and are given by whoever knows the model."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from itertools import pairwise

import orjson

from rollwright.wire import UsageError

from .engine_bytes import BYTE_ALPHABET

Ranks = Mapping[bytes, int]
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LETTERS = {byte: letter for letter, byte in BYTE_ALPHABET.items()}


def read_ranks(data: bytes) -> dict[bytes, int]:
    try:
        pairs = (line.split() for line in data.splitlines() if line)
        return {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
    except (ValueError, binascii.Error) as error:
        raise UsageError(f"this is no file of token ranks: {error}") from error


def tokenizer_json(ranks: Ranks, pattern: str, specials: Mapping[str, int], *, nfc: bool = False) -> bytes:
    """The same vocabulary as a `tokenizer.json`. `pattern` splits text into words; `nfc` normalizes text first."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return orjson.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [_added(text, id) for text, id in sorted(specials.items(), key=lambda item: item[1])],
            "normalizer": {"type": "NFC"} if nfc else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
            "post_processor": None,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                # A word that is a token needs no merges. Ranks mean just that.
                "ignore_merges": True,
                "vocab": {_spell(token): rank for token, rank in ranks.items()},
                "merges": [[_spell(left), _spell(right)] for left, right in merges_of(ranks)],
            },
        }
    )


def merges_of(ranks: Ranks) -> list[tuple[bytes, bytes]]:
    """The pair that each token is made of, in the order of the ranks."""
    longer = sorted((rank, token) for token, rank in ranks.items() if len(token) > 1)
    pairs = (_halves(ranks, token, rank) for rank, token in longer)
    return [pair for pair in pairs if pair is not None]


def byte_vocabulary(specials: Sequence[str], words: Sequence[str] = ()) -> bytes:
    """The `tokenizer.json` of a vocabulary of all bytes, then `words`, then control strings: small, complete, and made
    up. For tests and first steps where no model's own can be had."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    for word in words:
        ranks.setdefault(word.encode(), len(ranks))
    return tokenizer_json(ranks, _WORDS, {text: len(ranks) + at for at, text in enumerate(specials)})


def _halves(ranks: Ranks, token: bytes, rank: int) -> tuple[bytes, bytes] | None:
    """Merge the bytes of a token as an encoder would who knows lesser ranks only. Two parts remain, or the token cannot
    be reached by merging and is found as a whole word only."""
    parts = [token[at : at + 1] for at in range(len(token))]
    while len(parts) > 2:
        joined = [ranks.get(left + right, rank) for left, right in pairwise(parts)]
        least = min(joined)
        if least >= rank:
            return None
        at = joined.index(least)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


def _spell(token: bytes) -> str:
    return "".join(_LETTERS[byte] for byte in token)


def _added(text: str, id: int) -> dict[str, object]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": id, "content": text, **flags, "special": True}
