"""Settings from TOML files. A file is refused by naming it, the key, and the nearest known name."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from rollwright.wire import UsageError
from rollwright.wire.hints import nearest

from .fields import Setting, read, said, tags


class Layer(msgspec.Struct, frozen=True):
    """What one file says."""

    path: Path
    table: dict[str, Any]
    """Nested, as written, without the taskset's name."""
    taskset: str = ""
    """The name under [taskset], if the file gives one."""


def read_layer(path: Path) -> Layer:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"settings file {path} cannot be read: {error.strerror}; check the path after @") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"settings file {path} is not UTF-8 text; save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"settings file {path} is not valid TOML: {error}; correct that place") from error
    options = table.get("taskset", {})
    if not isinstance(options, dict):
        raise UsageError(f'{path}: taskset is a table; write [taskset] and below it name = "{options}"')
    name = options.pop("name", "")
    if not isinstance(name, str):
        raise UsageError(f"{path}: taskset.name takes text, not {name!r}")
    return Layer(path, table, name)


def checked(layer: Layer, known: Mapping[str, Setting]) -> dict[str, Any]:
    """The file's values by dotted key, each of its setting's type."""
    found: dict[str, Any] = {}
    for key, value in _leaves(layer, layer.table, known, ""):
        try:
            found[key] = read(value, known[key], text=False)
        except msgspec.ValidationError as error:
            raise UsageError(f"{layer.path}: {_refusal(key, value, known[key], str(error))}") from error
    return found


def _refusal(key: str, value: Any, setting: Setting, error: str) -> str:
    """In one sentence; inside a list of tables, such as [[filters]], it names the place."""
    reason, _, place = error.partition(" - at `$")
    if not isinstance(value, list) or not place:
        return f"{key} takes {said(setting.type)}, not {value!r}"
    kinds = f"; there is {', '.join(tags(setting.type))}" if place.endswith("kind`") else ""
    return f"{key}{place.removesuffix('`')}: {reason[0].lower()}{reason[1:]}{kinds}"


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as tables within tables."""
    root: dict[str, Any] = {}
    for key, value in values.items():
        *tables, name = key.split(".")
        place = root
        for table in tables:
            place = place.setdefault(table, {})
        place[name] = value
    return root


def _leaves(layer: Layer, table: Mapping[str, Any], known: Mapping[str, Setting], prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in table.items():
        key = prefix + name
        is_table = any(other.startswith(key + ".") for other in known)
        if key in known:
            found.append((key, value))
        elif is_table and isinstance(value, dict):
            found.extend(_leaves(layer, value, known, key + "."))
        elif is_table:
            raise UsageError(f"{layer.path}: {key} is a table of settings, not {value!r}; write [{key}]")
        elif not (key == "taskset" and value == {}):
            raise UsageError(f"{layer.path}: {key} is not a setting{_hint(key, known)}")
    return found


def _hint(key: str, known: Mapping[str, Setting]) -> str:
    tables = {other.rpartition(".")[0] for other in known if "." in other}
    # A key is first looked for among its neighbours: in [runtime], memory is nearer to memory_mb than to model.
    inside = key.rpartition(".")[0]
    near = [other for other in (*known, *tables) if other.rpartition(".")[0] == inside]
    close = nearest(key, near) or nearest(key, (*known, *tables))
    return f"; did you mean {close}?" if close else "; see --help for all of them"
