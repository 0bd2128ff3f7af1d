# /// script
# requires-python = ">=3.10"
# dependencies = ["math-verify[antlr4_13_2]==0.9.0", "latex2sympy2-extended==1.11.0", "sympy==1.14.0"]
# ///
"""Is this the right answer? Prints 1.0 or 0.0. Runs inside a runtime, apart from Rollwright, which it does not import.

    verify_math.py STYLE GOLD ANSWER

STYLE says where the final answer stands in ANSWER: `number` looks for `#### 42`, then a box, then the last number;
`boxed` looks for the last box, then for any mathematics. An answer that makes no sense is 0.0; a GOLD that makes no
sense is an error. `main` touches nothing outside itself, so it can run in a process of its own, in a fork, or in a
worker that has served others. It sets no alarm: the deadline is the caller's, measured in one place.
"""

import logging
import re
import sys

import sympy.parsing.sympy_parser as sympy_parser  # type: ignore[import-not-found, import-untyped, unused-ignore]
from math_verify import parse, verify  # type: ignore[import-not-found, unused-ignore]

# Without deadlines of its own the library warns on stderr, once per process, which would tell a warm run from a cold.
if logging.getLogger("math_verify").level != logging.ERROR:
    logging.getLogger("math_verify").setLevel(logging.ERROR)

NUMBER = r"(?:(?<![\w)\]}])-)?\\?\$?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?(?:/[0-9]+)?|\.[0-9]+)"
LAST_NUMBER = re.compile(NUMBER)
PLAIN_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?")
BOXED_INTEGER = re.compile(r"\\boxed\{(-?[0-9]{1,15})\}")
HASHED = re.compile(r"####[ \t*]*(" + NUMBER + ")")
BRACES = re.compile(r"\\(?:boxed|fbox)\s{0,8}\{|\\[{}\\]|[{}]")
SEARCHED_CHARS = 2000
"""How much of the end is searched for an answer that nothing marks."""
MAX_BOX_CHARS = 1000
"""A longer box is no answer; thousands of brackets would only keep the parser busy for minutes."""


def main(argv: list[str]) -> str:
    style, gold, answer = argv
    wanted = _final_gold(style, gold)
    # A plain number is mathematics; it is parsed once it has to be compared with something that is none.
    expected = [] if PLAIN_NUMBER.fullmatch(wanted) else _parsed(gold, wanted)
    said = _final_answer(style, _tidy(answer))
    if not said:
        return "0.0"
    if _plain(said) == _plain(_boxed(gold)):
        return "1.0"
    ours, theirs = BOXED_INTEGER.fullmatch(_boxed(wanted)), BOXED_INTEGER.fullmatch(said)
    if ours and theirs:
        return "1.0" if int(ours[1]) == int(theirs[1]) else "0.0"
    expected = expected or _parsed(gold, wanted)
    try:
        right = verify(expected, parse(said, parsing_timeout=None), timeout_seconds=None)
    except Exception:  # Whatever an answer does to the parser, it is the answer that is wrong.
        return "0.0"
    return "1.0" if right else "0.0"


def _parsed(gold: str, wanted: str) -> "list[object]":
    expected: list[object] = parse(_boxed(wanted), parsing_timeout=None)
    if not expected:
        raise ValueError(f"the expected answer {gold!r} is no mathematics")
    return expected


def _final_gold(style: str, gold: str) -> str:
    return _bare_number(gold) if style == "number" else _tidy(gold)


def _final_answer(style: str, answer: str) -> str:
    """The part of an answer that counts, ready for the parser; empty if there is none."""
    if style == "number":
        hashed = HASHED.findall(answer)
        if hashed:
            return _boxed(_bare_number(hashed[-1]))
    box = _last_box(answer)
    if box is not None:
        return _boxed(box) if len(box) <= MAX_BOX_CHARS else ""
    end = answer[-SEARCHED_CHARS:]
    if style == "number":
        numbers = LAST_NUMBER.findall(end)
        return _boxed(_bare_number(numbers[-1])) if numbers else ""
    return end


def _boxed(text: str) -> str:
    return f"\\boxed{{{text}}}" if text.strip() else ""


def _bare_number(text: str) -> str:
    return text.replace(",", "").replace("\\", "").replace("$", "").strip()


def _last_box(answer: str) -> "str | None":
    """What the box that was closed last holds. One pass, however many boxes were opened and never closed."""
    opened: list[int] = []
    box = None
    for brace in BRACES.finditer(answer):
        mark = brace.group()
        if mark.endswith("{") and mark != "\\{":
            opened.append(brace.end() if len(mark) > 1 else -1)
        elif mark == "}" and opened:
            start = opened.pop()
            box = answer[start : brace.start()] if start >= 0 else box
    return box


def _tidy(text: str) -> str:
    """A comma is a comma, and a minus is a minus."""
    return text.replace("{,}", ",").replace("\\!", "").replace("\u2212", "-")


def _plain(text: str) -> str:
    return re.sub(r"\s+|\\[,;]", "", text)


def _lend_names() -> None:
    """sympy gathers its thousand names anew for each number that it reads; lend it those that it gathered once.

    They become the default of an argument of its parser, so that whatever calls it finds them, also in a fork. A sympy
    that is built otherwise goes on gathering.
    """
    read = getattr(sympy_parser, "parse_expr", None)
    if dict in map(type, getattr(read, "__defaults__", None) or ()):
        return  # As in every fork.
    code, defaults = getattr(read, "__code__", None), getattr(read, "__defaults__", None)
    words = code.co_varnames[: code.co_argcount] if code else ()
    place = words.index("global_dict") - len(words) if "global_dict" in words else 0
    if read is None or not defaults or not -len(defaults) <= place < 0 or defaults[place] is not None:
        return
    gathered: list[object] = []

    def keep(tokens: object, local_names: object, names: object) -> object:
        gathered.append(names)
        return tokens

    read("0", transformations=(keep,))
    lent = list(defaults)
    lent[place] = gathered[0]
    read.__defaults__ = tuple(lent)


def warmup() -> object:
    """What a zygote runs after import: grammars and caches are built on first use, not on import.

    It serves after the first step, which is all that numbers need, and goes on with the others when it has time.
    """
    main(["number", "1,000", "So it is 990 + 10.\n#### 1000"])
    main(["number", "18", "The sum is 17."])
    main(["number", "18", r"That is $\boxed{\frac{36}{2}}$."])
    main(["number", "18", "#### 18.00"])
    main(["boxed", r"\frac{1}{2}", r"Half, so $\boxed{0.5}$."])
    yield
    main(["boxed", r"2 + \sqrt{5}", r"$\boxed{\sqrt{5} + 2}$"])
    yield
    main(["boxed", "x^2 - 1", r"$\boxed{(x - 1)(x + 1)}$"])
    yield
    main(["boxed", "[-2, 5)", r"$\boxed{[-2, 5]}$"])


_lend_names()

if __name__ == "__main__":
    print(main(sys.argv[1:]))
