"""A script to ids, so that nothing anybody said becomes a control token unless their policy allows it.

The text of a script is encoded in one call, as the model's own template and tokenizer would. Then the control ids are
counted: if there are as many as the frames hold, nobody forged one. If there are more, the text is cut one character
into each control string that was said, and the parts are encoded apart: they spell it, and no part holds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rollwright.wire import UsageError
from rollwright.wire.arrays import Ids

from .contract import LiteralPolicy
from .engine import TokenEngine
from .script import Piece

_REJECT, _PARITY = LiteralPolicy.REJECT, LiteralPolicy.PARITY
_OPEN = (None, _PARITY)


class Lexicon:
    """The control strings of one vocabulary as one family sees them, and the byte lengths of its tokens."""

    def __init__(self, engine: TokenEngine, plain: str) -> None:
        self.engine = engine
        text = re.compile(plain)
        self.controls = {name: id for name, id in engine.specials.items() if not text.fullmatch(name)}
        self.is_control = np.zeros(engine.size, np.bool_)
        self.is_control[list(self.controls.values())] = True
        self._control = re.compile(one_of(self.controls))
        self._tangled = _tangled(self.controls)
        self._lengths = np.full(engine.size, -1, np.int32)
        self.bytes_of = _Bytes(engine).__getitem__
        # Frames are constants of a table, so there are few.
        self.count = lru_cache(maxsize=1024)(self._count)

    def _count(self, text: str) -> int:
        return sum(1 for _ in self._control.finditer(text))

    def places(self, text: str) -> list[int]:
        """Where control strings stand in a frame."""
        return [found.start() for found in self._control.finditer(text)]

    def encode(self, pieces: Sequence[Piece]) -> Ids:
        """The ids of a script."""
        text = "".join([piece[0] for piece in pieces])
        expected = self._expected(pieces)
        if expected is None:
            return self.engine.encode(text)
        if not self._tangled:
            ids = self.engine.encode(text)
            if np.count_nonzero(self.is_control.take(ids)) == expected:
                return ids
        return self._encode_apart(text, pieces, expected)

    def _expected(self, pieces: Sequence[Piece]) -> int | None:
        """How many control ids there must be; None if everybody may write them."""
        for piece in pieces:
            if piece[1] not in _OPEN:
                break
        else:
            return None
        count, expected = self.count, 0
        for piece in pieces:
            policy = piece[1]
            if policy is None:
                expected += count(piece[0])
            elif policy is _PARITY:
                expected += self._count(piece[0])
            elif policy is _REJECT and (found := self._control.search(piece[0])):
                raise UsageError(f"a message holds the control string {found[0]!r}, and its policy is to reject")
        return expected

    def _encode_apart(self, text: str, pieces: Sequence[Piece], expected: int) -> Ids:
        cuts = self._cuts(text, pieces)
        parts = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        ids = np.concatenate(self.engine.encode_many(parts))
        if np.count_nonzero(self.is_control[ids]) != expected:
            raise UsageError("a message holds a control string in a spelling that cannot be kept as text")
        return ids

    def _cuts(self, text: str, pieces: Sequence[Piece]) -> list[int]:
        """Where to cut, so that no part holds a control string that somebody said, or helped to make at a seam. The
        frame's own lie outside of all that was said, and are left whole."""
        guarded = _guarded(pieces)
        cuts, at = set(), 0
        for start, stop in self._anywhere(text):
            while at < len(guarded) and guarded[at][1] <= start:
                at += 1
            if at < len(guarded) and guarded[at][0] < stop:
                cuts.add(max(start + 1, guarded[at][0]))
        return sorted(cuts)

    def _anywhere(self, text: str) -> Iterator[tuple[int, int]]:
        """Every place where a control string begins, also inside of another."""
        found = self._control.search(text)
        while found:
            yield found.span()
            found = self._control.search(text, found.start() + 1)

    def lengths(self, ids: Ids) -> NDArray[np.int32]:
        """How many bytes each token stands for."""
        lengths = self._lengths[ids]
        if len(lengths) and lengths.min() < 0:
            for id in np.unique(ids[lengths < 0]).tolist():
                self._lengths[id] = len(self.engine.token_bytes(id))
            lengths = self._lengths[ids]
        return lengths


class _Bytes(dict[int, bytes]):
    """The engine's bytes of a token, without a call for those that were asked for before."""

    def __init__(self, engine: TokenEngine) -> None:
        super().__init__()
        self._engine = engine

    def __missing__(self, id: int) -> bytes:
        found = self[id] = self._engine.token_bytes(id)
        return found


def lexicon_of(engine: TokenEngine, plain: str) -> Lexicon:
    """One per engine and view of it, however many renderers there are, and as long-lived as engines are. Two threads
    may build one at once; they are equal, and one of them stays."""
    views = _lexicons.setdefault(engine, {})
    return views.get(plain) or views.setdefault(plain, Lexicon(engine, plain))


_lexicons: dict[TokenEngine, dict[str, Lexicon]] = {}


def one_of(names: Iterable[str]) -> str:
    """A pattern that finds the longest of these strings. What several begin with is looked at once: a vocabulary may
    have thousands of control strings, and trying one after another at every character takes most of a render."""
    tails: dict[str, list[str]] = {}
    for name in names:
        tails.setdefault(name[:1], []).append(name[1:])
    branches = [re.escape(head) + one_of(rest) for head, rest in tails.items() if head]
    if not branches:
        return "" if tails else r"(?!)"
    pattern = branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
    return f"(?:{pattern})?" if "" in tails else pattern


def _guarded(pieces: Sequence[Piece]) -> list[tuple[int, int]]:
    """Spans of characters that must not make a control token."""
    spans, at = [], 0
    for text, policy, *_ in pieces:
        if policy is not None and policy is not _PARITY:
            spans.append((at, at + len(text)))
        at += len(text)
    return spans


def _tangled(names: Iterable[str]) -> bool:
    """Whether one control string can begin inside another. Then a forged one may hide one of the frame's, and counting
    proves nothing."""
    known = set(names)
    starts = {name[:length] for name in known for length in range(1, len(name) + 1)}
    inner = (name[at:] for name in known for at in range(1, len(name)))
    return any(tail in starts or any(tail[:length] in known for length in range(1, len(tail))) for tail in inner)
