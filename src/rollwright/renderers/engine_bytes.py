"""Which bytes a token stands for. Vocabularies write them in one of two alphabets: byte-level, where each byte has a
printable character of its own, and metaspace, where a space is `▁` and a byte without a token is `<0xFF>`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np

from rollwright.wire.arrays import Ids

_HEX = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """The characters of byte-level vocabularies. Printable Latin-1 stands for itself; the rest follows from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + rank): byte for rank, byte in enumerate(others)}


BYTE_ALPHABET: Mapping[str, int] = _byte_alphabet()


def byte_level(token: str) -> bytes:
    try:
        return bytes([BYTE_ALPHABET[char] for char in token])
    except KeyError:
        return token.encode()


def metaspace(token: str) -> bytes:
    if found := _HEX.fullmatch(token):
        return bytes([int(found[1], 16)])
    return token.replace("▁", " ").encode()


class ByteTable(dict[int, bytes]):
    """Bytes by id, looked up when first asked for: a whole vocabulary would cost a third of loading it. Threads may
    fill one entry twice, with the same value."""

    def __init__(self, name_of: Callable[[int], str | None], alphabet: Callable[[str], bytes]) -> None:
        super().__init__()
        self._name_of = name_of
        self._alphabet = alphabet

    def __missing__(self, id: int) -> bytes:
        name = self._name_of(id) if id >= 0 else None
        found = self[id] = b"" if name is None else self._alphabet(name)
        return found

    def join(self, ids: Ids) -> bytes:
        return b"".join(map(self.__getitem__, ids.tolist() if isinstance(ids, np.ndarray) else ids))
