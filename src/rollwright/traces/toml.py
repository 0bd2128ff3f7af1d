"""Settings as TOML text. The standard library reads TOML and does not write it; ours are tables of plain values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Set
from enum import Enum
from pathlib import Path
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def write_toml(table: Mapping[str, Any]) -> str:
    """TOML that `tomllib` reads back as the same tables. A value of None is left out: TOML has no word for it."""
    return "\n".join(_lines(table, ())) + "\n"


def differing_key(before: Mapping[str, Any], after: Mapping[str, Any], ignored: Set[str]) -> str:
    """The first dotted key whose values differ, with both values; empty if none does."""
    old, new = dict(_flat(before)), dict(_flat(after))
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key) and key not in ignored:
            return f"{key} was {_said(old.get(key))} and is now {_said(new.get(key))}"
    return ""


def _said(value: Any) -> str:
    return "unset" if value is None else repr(value)


def _flat(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            found.extend(_flat(value, f"{prefix}{key}."))
        else:
            found.append((prefix + key, value))
    return found


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    plain = [(key, value) for key, value in table.items() if not isinstance(value, Mapping) and value is not None]
    lines = [f"{_key(key)} = {toml_value(value)}" for key, value in plain]
    if path and lines:
        lines.insert(0, f"\n[{'.'.join(map(_key, path))}]")
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines.extend(_lines(value, (*path, key)))
    return lines


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _string(key)


def toml_value(value: Any) -> str:
    """One value, as it stands behind its key."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return toml_value(value.value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | Path):
        return _string(str(value))
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {toml_value(item)}" for key, item in value.items()) + " }"
    return "[" + ", ".join(toml_value(item) for item in value) + "]"


def _string(text: str) -> str:
    # JSON's escapes are a subset of TOML's, but for DEL, which TOML wants escaped too.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
