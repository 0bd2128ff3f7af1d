"""A toy tokenizer: bytes, a few pairs, and special ids.

`encode` is the one canonical way to write a text; `sample` is one of the many ways in which a model may have written
it: some pairs come as their two bytes. Both decode to exactly the text, so ids cannot be recovered by encoding again,
which is what real tokenizers do to those who try.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from random import Random
from string import ascii_lowercase, digits

_PAIRS = [f"{a}{b}" for a in digits for b in digits]
_PAIRS += [f"{a}{b}" for a in f" {ascii_lowercase}" for b in ascii_lowercase]
# The pattern finds exactly the pairs of the table, from left to right, and any other byte alone.
_PIECES = re.compile(rb"[0-9]{2}|[ a-z][a-z]|[\x00-\xff]")

_BYTES: list[bytes] = [bytes([value]) for value in range(256)] + [pair.encode() for pair in _PAIRS]
_IDS: dict[bytes, int] = {piece: index for index, piece in enumerate(_BYTES)}

_MARKS = ["tools", "system", "user", "assistant", "tool", "end", "think", "think_end", "call", "call_arguments"]
_MARKS += ["call_end", "result", "result_error", "result_end", "image"]
SPECIAL: dict[str, int] = {name: len(_BYTES) + index for index, name in enumerate(_MARKS)}
VOCABULARY = len(_BYTES) + len(_MARKS)
END = SPECIAL["end"]
NEWLINE = 10

# In a sampled text every so many pieces one comes as single bytes; the first within the first few pieces.
_FIRST_SPLIT, _NEXT_SPLIT = 2, 12


def encode(text: str) -> list[int]:
    """The canonical ids of `text`."""
    return [_IDS[piece] for piece in _PIECES.findall(_to_bytes(text))]


def sample(text: str, rng: Random) -> list[int]:
    """Ids that a model may have sampled to say `text`."""
    canonical = encode(text)
    ids: list[int] = []
    start, split = 0, rng.randrange(_FIRST_SPLIT)
    for chance in rng.randbytes(len(canonical)):
        if split >= len(canonical):
            break
        ids += canonical[start:split]
        ids += _BYTES[canonical[split]]
        start, split = split + 1, split + 1 + chance % _NEXT_SPLIT
    return ids + canonical[start:]


def decode(ids: Iterable[int]) -> str:
    """The text that `ids` spell. Special ids spell nothing; bytes that are no character become U+FFFD."""
    data = _spelled(ids)
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


def cut(ids: list[int], limit: int) -> list[int]:
    """The first `limit` ids, or a few less so that they end with a whole character."""
    ids = ids[: max(limit, 0)]
    while not _whole(ids):
        ids.pop()
    return ids


def _whole(ids: list[int]) -> bool:
    try:
        _spelled(ids).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


def _spelled(ids: Iterable[int]) -> bytes:
    return b"".join([_BYTES[index] for index in ids if index < len(_BYTES)])


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
