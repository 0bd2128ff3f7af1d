"""What can be set: the fields of a settings struct under dotted keys, and words for their types.

Files and flags are checked against the same table, so both are refused in the same words.
"""

from __future__ import annotations

import inspect
import types
import typing
from enum import Enum
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

_WORDS = {
    type(None): "none",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Any: "anything",
}


class Setting(msgspec.Struct, frozen=True):
    """One thing that can be set."""

    key: str
    """Dotted, as in a TOML file: runtime.memory_mb."""
    type: Any
    required: bool = False
    tag: bool = False
    """It says which kind of struct the table around it is."""

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def kind(self) -> Literal["switch", "one", "many", "file only"]:
        """How many words it takes on a command line; a loosely typed table takes none."""
        parts = _alternatives(self.type)
        if any(_loose(part) for part in parts):
            return "file only"
        if any(_container(part) for part in parts):
            return "many"
        return "switch" if bool in parts else "one"


def settings_of(kind: type[msgspec.Struct], prefix: str = "") -> dict[str, Setting]:
    """Every setting of `kind` and of the structs inside it, by dotted key."""
    found: dict[str, Setting] = {}
    config = kind.__struct_config__
    if config.tag_field is not None:
        key = prefix + config.tag_field
        found[key] = Setting(key, Literal[config.tag], tag=True)
    for field in msgspec.structs.fields(kind):
        key = prefix + field.encode_name
        inner = struct_in(field.type)
        if inner is not None:
            found.update(settings_of(inner, key + "."))
        else:
            found[key] = Setting(key, field.type, field.required)
    return found


def struct_in(kind: Any) -> type[msgspec.Struct] | None:
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return kind if inspect.isclass(kind) and issubclass(kind, msgspec.Struct) else None


def read(value: Any, setting: Setting, *, text: bool) -> Any:
    """`value` as the setting's type; ValueError where it does not fit. `text` says that it comes from a command line,
    where a number is written as text. TOML has no null, so the word none stands for it in both."""
    if isinstance(value, str) and value.lower() == "none" and type(None) in _alternatives(setting.type):
        return None
    return msgspec.convert(value, setting.type, strict=not text)


def said(kind: Any) -> str:
    """The values that a type takes, in words."""
    return " or ".join(dict.fromkeys(_said_one(part) for part in _alternatives(kind)))


def tags(kind: Any) -> list[str]:
    """The kinds of tables that a list takes, by name."""
    parts = [part for element in get_args(kind) for part in _alternatives(element)]
    configs = (getattr(part, "__struct_config__", None) for part in parts)
    return [str(config.tag) for config in configs if config is not None and config.tag is not None]


def _said_one(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(str(choice) for choice in get_args(kind))
    if inspect.isclass(kind) and issubclass(kind, Enum):
        return " or ".join(str(member.value) for member in kind)
    if _container(kind):
        return "a table" if _is_mapping(kind) else "a list"
    return _WORDS.get(kind) or str(getattr(kind, "__name__", kind))


def _alternatives(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in (typing.Union, types.UnionType):
        return tuple(part for arm in get_args(kind) for part in _alternatives(arm))
    return (kind,)


def _container(kind: Any) -> bool:
    origin = get_origin(kind) or kind
    return inspect.isclass(origin) and issubclass(origin, tuple | list | set | frozenset | dict)


def _is_mapping(kind: Any) -> bool:
    origin = get_origin(kind) or kind
    return inspect.isclass(origin) and issubclass(origin, dict)


def _loose(kind: Any) -> bool:
    """A value that a row of words cannot spell: anything at all, or containers within containers."""
    if kind is Any or struct_in(kind) is not None:
        return True
    return _container(kind) and any(
        _loose(part) or _container(part) for arm in get_args(kind) if arm is not Ellipsis for part in _alternatives(arm)
    )
