"""Whether two engines give the same ids: a corpus of texts on which tokenizers are known to part ways.

A faster engine is taken only after it has agreed here with the reference, text by text. The corpus is the same in every
process; what is drawn is drawn from a fixed seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Protocol

import numpy as np

from rollwright.wire import UsageError
from rollwright.wire.arrays import Ids

_SEED = 20
_MIXED_TEXTS = 400
_MAX_SPECIALS = 64

_PROSE = (
    "It's the agent's turn; they'll say WE'RE DONE, won't they? I'D'VE 'tis O'Neill's.",
    "def f(x: int) -> str:\n\treturn f'{x!r:>10}'  # comment\n\n\n\nif __name__ == '__main__':\r\n    pass\r\n",
    '{"name": "search", "arguments": {"q": "a\\"b\\\\c\\n", "n": [1, 2.50, -3e-10, null, true], "é": {}}}',
    "<p class='x'>a &amp; b</p><!-- --> http://example.com/?a=1&b=2#c C:\\Users\\x /usr/bin/env",
    "1 12 123 1234 12345 3.14159 1,000,000 0x1F 007 ½ ² ٣ १२३ ⅷ 一二三",
    "日本語のテキスト、中文字符。한국어 문장입니다. ภาษาไทย العربية עִבְרִית हिन्दी தமிழ் ქართული",
    "e\u0301 é n\u0303 ñ ﬁ Å \u212b \u1e9b\u0323 가 \u1100\u1161 \u0338 >\u0338 a\u0300\u0301\u0302\u0303",
    "😀👍🏽👩‍👩‍👧‍👦🇫🇷🏳️‍🌈 ❤️ ☎︎ \U0001f9d1\u200d\U0001f680",
    "\u200b\u200c\u200d\u2060\ufeff\u00ad\u202e\u2028\u2029\u0085\u00a0\u3000\u2003\x00\x01\x1b[31m\x7f\ufffd\ufffe\U0010ffff",
    "ǅ ǈ ß ẞ İ ı ſ K Σσς 'ſ 'ſt 'S 'RE \u2019s",
)
_LONG = (
    "a" * 3000,
    " " * 1500,
    "\n" * 700,
    "0123456789" * 150,
    "中" * 800,
    "😀" * 300,
    "=-" * 600,
    "aB3 " * 500,
    "\t \n" * 300,
)
_ALPHABET = "ab cZ'.,!?<>|{}[]_-/\\\"`~#09 \n\n\t\r  é\u0301中あ한ا😀\u200d\u00a0\u0338"


class Encoder(Protocol):
    def encode(self, text: str) -> Ids: ...


def probe_texts(specials: Sequence[str]) -> Iterator[str]:
    """Short prose, runs of every kind of white space, long lines, control strings whole and broken, and mixtures."""
    yield ""
    yield from _PROSE
    yield from _LONG
    for run in range(1, 20):
        yield f"{' ' * run}x{chr(10) * run}y{chr(9) * run}z{' ' * run}\n{' ' * run}"
    dice = Random(_SEED)
    drawn = sorted(specials)
    drawn = dice.sample(drawn, min(len(drawn), _MAX_SPECIALS))
    for text in drawn:
        yield f" {text} a{text}{text}\n{text}\u0338{text[:-1]} {text[1:]} {text.upper()}"
    pieces = [*_ALPHABET, *_ALPHABET, *_ALPHABET, *drawn]
    for _ in range(_MIXED_TEXTS):
        yield "".join(dice.choices(pieces, k=dice.randint(1, 80)))


def prove_equal(
    candidate: Encoder, reference: Callable[[str], Sequence[int]], specials: Sequence[str], name: str
) -> None:
    """UsageError with the first text on which the two differ."""
    for text in probe_texts(specials):
        if not np.array_equal(candidate.encode(text), reference(text)):
            shown = text if len(text) <= 60 else text[:60] + "..."
            raise UsageError(
                f"{name} gives other ids than tokenizers for {shown!r} with this vocabulary; use tokenizers"
            )
