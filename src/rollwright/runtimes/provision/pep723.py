"""The header of a PEP 723 script: what it needs, and the key under which its interpreter is kept. Reads, never runs."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rollwright.wire import RuntimeFault

_OPEN, _CLOSE = "# /// script", "# ///"
_CLAUSE = re.compile(r"\s*(>=|<=|==|!=|~=|>|<)\s*(\d+(?:\.\d+)*)(\.\*)?\s*\Z")


@dataclass(frozen=True, slots=True)
class Needs:
    """What a script declares."""

    dependencies: tuple[str, ...] = ()
    requires_python: str = ""

    @property
    def key(self) -> str:
        """The same for scripts that can share an interpreter; it does not change when the body of a script does."""
        parts = [*sorted(self.dependencies), self.requires_python, sys.implementation.cache_tag, sys.base_prefix]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]

    def python(self) -> str:
        """The interpreter to build on: this one where it will do, else what uv finds for the requirement."""
        return sys.executable if admits(self.requires_python, sys.version_info[:3]) else self.requires_python


def needs_of(script: Path) -> Needs:
    """Read the header of `script`; a script without one needs nothing."""
    try:
        text = script.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RuntimeFault(f"script {script} cannot be read: {error}") from error
    blocks = list(_blocks(text.splitlines()))
    if len(blocks) > 1:
        raise RuntimeFault(f"script {script} has {len(blocks)} script blocks; PEP 723 allows one")
    return _parse(blocks[0], script) if blocks else Needs()


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """The lines of each script block. A block runs to the last closing line of the comment it stands in."""
    at = 0
    while at < len(lines):
        at += 1
        if lines[at - 1] != _OPEN:
            continue
        end = at
        while end < len(lines) and (lines[end] == "#" or lines[end].startswith("# ")):
            end += 1
        closing = max((index for index in range(at, end) if lines[index] == _CLOSE), default=-1)
        if closing >= 0:
            yield lines[at:closing]
            at = closing + 1


def _parse(block: list[str], script: Path) -> Needs:
    try:
        table = tomllib.loads("\n".join(line[2:] for line in block))
    except tomllib.TOMLDecodeError as error:
        raise RuntimeFault(f"the script block of {script} is not TOML: {error}") from error
    dependencies, python = table.get("dependencies", []), table.get("requires-python", "")
    if not isinstance(dependencies, list) or not all(isinstance(one, str) for one in dependencies):
        raise RuntimeFault(f"'dependencies' of {script} is not a list of strings")
    if not isinstance(python, str):
        raise RuntimeFault(f"'requires-python' of {script} is not a string")
    if "uv" in table.get("tool", {}):
        # Ignoring these would install something else than `uv run` does, in silence.
        raise RuntimeFault(f"{script} has [tool.uv] settings, which are not supported; pin versions in 'dependencies'")
    return Needs(tuple(dependencies), python)


def admits(specifier: str, version: tuple[int, ...]) -> bool:
    """Whether `version` meets a version specifier. False for forms that this does not read: uv decides those."""
    return all(_clause_admits(clause, version) for clause in specifier.split(",") if clause.strip())


def _clause_admits(clause: str, version: tuple[int, ...]) -> bool:
    match = _CLAUSE.match(clause)
    if match is None:
        return False
    operator, digits, star = match.groups()
    wanted = tuple(int(part) for part in digits.split("."))
    if star and operator not in ("==", "!="):
        return False
    if operator == "~=":
        return len(wanted) > 1 and version >= wanted and version[: len(wanted) - 1] == wanted[:-1]
    if star:
        return (version[: len(wanted)] == wanted) is (operator == "==")
    return _COMPARE[operator](version, wanted + (0,) * (3 - len(wanted)))


_COMPARE: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": lambda have, want: have >= want,
    "<=": lambda have, want: have <= want,
    ">": lambda have, want: have > want,
    "<": lambda have, want: have < want,
    "==": lambda have, want: have == want,
    "!=": lambda have, want: have != want,
}
