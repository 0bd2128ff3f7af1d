"""The end of a sentence about a word that is not known: the nearest one that is."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.5) -> str:
    """The known word that is most like `word`; empty if none is."""
    close = get_close_matches(word, sorted(known), n=1, cutoff=cutoff)
    return close[0] if close else ""


def hint(word: str, known: Iterable[str]) -> str:
    """`did you mean 'docker'?`, or else what there is."""
    names = sorted(known)
    close = nearest(word, names)
    if close:
        return f"did you mean {close!r}?"
    return f"there is {', '.join(names)}" if names else "there is none"
