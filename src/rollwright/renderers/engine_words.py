"""The ids of words, remembered: what a byte-level tokenizer does with plain text, done once per word.

Such a tokenizer finds its control strings, splits the text between them by one expression, and encodes each word by
itself. So the ids of a text are those of its words, one after the other, and words repeat. Only ASCII is taken this
way, where the expression means the same to Python and to the tokenizer, and only short texts, since the GIL is held;
all else goes through the tokenizer. `word_memo` gives None for tokenizers that work in any other way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import orjson
from tokenizers import Tokenizer

from .engine_bytes import BYTE_ALPHABET

MAX_CHARS = 4096
"""Longer texts are worth the way through the tokenizer, which lets go of the GIL."""
MAX_PIECE_CHARS = 512
"""Pieces of a longer text, between control strings, that are not."""
_MAX_WORDS = 65536
_MAX_WORD_CHARS = 64

# What is left of each class among ASCII; None for classes that have nothing there.
_CLASSES = {
    "L": "A-Za-z",
    "Lu": "A-Z",
    "Ll": "a-z",
    "N": "0-9",
    "Lt": "",
    "Lm": "",
    "Lo": "",
    "M": "",
    "P": None,
    "S": None,
}
_CLASS = re.compile(r"\\p\{(\w+)\}")
_CHECK = (
    "It's we'LL THEY'd 'tis I'm\n\n  x1y22 333\t4444  \r\n {\"a\": [1, 2.5, null]} <a href='x'>__init__(self)</a>   \n",
    "".join(map(chr, range(128))),
    " !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ a!b@c#d \n\t \n  \r\n\r a  b   c    1  2 \x00\x1c\x1f\x7f\x0b\x0c z ",
)
_LETTERS = {byte: letter for letter, byte in BYTE_ALPHABET.items()}

Words = Callable[[str], list[str]]


class WordMemo(dict[str, tuple[int, ...]]):
    """Ids by word. Threads may fill one entry twice, with the same value."""

    def __init__(self, words: Words, ids_of: Callable[[str], tuple[int, ...]]) -> None:
        super().__init__()
        self._words = words
        self._ids_of = ids_of

    def __missing__(self, word: str) -> tuple[int, ...]:
        ids = self._ids_of(word.translate(_LETTERS))
        if len(word) <= _MAX_WORD_CHARS:
            if len(self) >= _MAX_WORDS:
                self.clear()
            self[word] = ids
        return ids

    def encode(self, text: str) -> list[int]:
        """The ids of ASCII text without control strings."""
        return list(chain.from_iterable(map(self.__getitem__, self._words(text))))


def splits_plainly(core: Tokenizer) -> bool:
    """Whether the text between control strings is encoded as if nothing were beside it."""
    normalizer, before = _state(core.normalizer), _state(core.pre_tokenizer)
    plain = normalizer == {} or normalizer.get("type") == "NFC" or normalizer.get("normalizers") == []
    added = core.get_added_tokens_decoder().values()
    loose = any(token.lstrip or token.rstrip or token.single_word or token.normalized for token in added)
    level = before["pretokenizers"][-1:] if before.get("type") == "Sequence" else [before]
    byte_level = [part for part in level if part.get("type") == "ByteLevel" and not part["add_prefix_space"]]
    return plain and not loose and bool(byte_level)


def word_memo(core: Tokenizer, encode: Callable[[str], list[int]]) -> WordMemo | None:
    """The memo of a tokenizer that `splits_plainly`. `encode` is the tokenizer's own word on texts without control
    strings; a memo that differs from it on a few hard texts is not given."""
    words = _words(core)
    model: Any = core.model
    if words is None or type(model).__name__ != "BPE" or model.dropout:
        return None
    memo = WordMemo(words, lambda word: tuple(token.id for token in model.tokenize(word)))
    return memo if all(memo.encode(text) == encode(text) for text in _CHECK) else None


def _words(core: Tokenizer) -> Words | None:
    """The tokenizer's expression, as Python reads it for ASCII."""
    match _state(core.pre_tokenizer).get("pretokenizers"):
        case [
            {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ]:
            return _in_python(pattern)
    return None


def _in_python(pattern: str) -> Words | None:
    if any(_CLASSES.get(found) is None for found in _CLASS.findall(pattern)):
        return None
    pieces, inside, at = [], False, 0
    while at < len(pattern):
        found = _CLASS.match(pattern, at)
        text = found[0] if found else pattern[at : at + 2] if pattern[at] == "\\" else pattern[at]
        at += len(text)
        if found:
            letters = _CLASSES[found[1]] or ""
            pieces.append(letters if inside else f"[{letters}]" if letters else "(?!)")
            continue
        inside = {"[": True, "]": False}.get(text, inside)
        pieces.append(text)
    found_in = "".join(pieces)
    if "[]" in found_in or "[^]" in found_in:
        return None
    try:
        return re.compile(found_in, re.ASCII).findall
    except re.error:
        return None


def _state(part: Any) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(part.__getstate__()) if part is not None else {}
    return found


def control_pattern(specials: Mapping[str, int]) -> re.Pattern[str]:
    """Finds control strings, the longest of those that begin at one place. Splitting by it keeps them."""
    longest = sorted(specials, key=len, reverse=True)
    return re.compile("(" + ("|".join(map(re.escape, longest)) or "(?!)") + ")")
