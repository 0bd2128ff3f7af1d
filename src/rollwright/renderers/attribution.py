"""Whose each token of a script is, from the byte lengths of the tokens."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from rollwright.wire import Role
from rollwright.wire.arrays import Ids

from .lexicon import Lexicon
from .script import Piece
from .tape import Placeholder, Run

Offsets = NDArray[np.int64]


class Written:
    """The origin of ids that came from a script."""

    __slots__ = ("_lexicon", "_pieces")

    def __init__(self, pieces: Sequence[Piece], lexicon: Lexicon) -> None:
        self._pieces = pieces
        self._lexicon = lexicon

    def runs(self, ids: Ids) -> list[Run]:
        stops = self._stops(ids)
        found, start = [], 0
        spans = zip(self._pieces, stops, strict=True)
        for (message, role, content), group in groupby(spans, key=lambda pair: _owner(pair[0])):
            *_, (_, stop) = group
            if stop > start:
                found.append(Run(start, stop, message, role, False, content))
            start = max(start, stop)
        return found

    def images(self, ids: Ids) -> list[Placeholder]:
        if not any(piece.sha256 for piece in self._pieces):
            return []
        stops = self._stops(ids)
        return [
            Placeholder(start, stop, piece.message, piece.sha256)
            for piece, start, stop in zip(self._pieces, [0, *stops[:-1]], stops, strict=True)
            if piece.sha256
        ]

    def _stops(self, ids: Ids) -> list[int]:
        """The index after the last token of each piece."""
        begins = np.zeros(len(ids) + 1, np.int64)
        np.cumsum(self._lexicon.lengths(ids), out=begins[1:])
        marks = _marks([piece.text for piece in self._pieces])
        if marks[-1] != begins[-1]:
            # The tokenizer writes equal characters in one way only, and somebody used another.
            marks = _marks([unicodedata.normalize("NFC", piece.text) for piece in self._pieces])
        if marks[-1] != begins[-1]:
            begins = self._anchored(ids, begins, marks)
        stops: list[int] = np.searchsorted(begins[:-1], marks, side="left").tolist()
        return stops

    def _anchored(self, ids: Ids, begins: Offsets, marks: Offsets) -> Offsets:
        """Offsets of tokens, moved so that each control token lies where its frame has it. Only texts that the
        tokenizer changed in length need this, and only inside them a border may be off by the change."""
        lexicon = self._lexicon
        tokens = np.flatnonzero(lexicon.is_control[ids])
        places = [
            int(mark) - len(piece.text.encode()) + len(piece.text[:at].encode())
            for piece, mark in zip(self._pieces, marks, strict=True)
            if piece.policy is None
            for at in lexicon.places(piece.text)
        ]
        if len(places) != len(tokens):
            return begins
        moved = begins.copy()
        for token, place in zip(tokens.tolist(), places, strict=True):
            moved[token:] += place - moved[token]
        # A text that grew would reach past its control token; what is before a token cannot begin after it.
        return np.minimum.accumulate(moved[::-1])[::-1]


def _owner(piece: Piece) -> tuple[int, Role, bool]:
    return piece.message, piece.role, piece.policy is not None and piece.message >= 0


def _marks(texts: Sequence[str]) -> Offsets:
    return np.cumsum([len(text) if text.isascii() else len(text.encode()) for text in texts])
