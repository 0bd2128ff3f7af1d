"""From the name of a kind and loose settings to its config: the same words for runtimes, harnesses and whatever else
has kinds. What is made from a config is the business of its room."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from .errors import UsageError
from .hints import hint

C = TypeVar("C", bound=msgspec.Struct)


def config_of(what: str, kinds: Mapping[str, type[C]], kind: str, settings: Mapping[str, Any] | None) -> C:
    """The config of `kind` with `settings`; UsageError names what is wrong and the nearest known name. `what` is the
    word for whatever has kinds."""
    config_type = kinds.get(kind)
    if config_type is None:
        raise UsageError(f"{what} {kind!r} is not known; {hint(kind, kinds)}")
    given = dict(settings or {})
    known = list(config_type.__struct_fields__)
    for name in given:
        if name not in known:
            raise UsageError(f"{what} {kind!r} has no setting {name!r}; {hint(name, known)}")
    try:
        return msgspec.convert({**given, "kind": kind}, config_type)
    except msgspec.ValidationError as error:
        raise UsageError(f"a setting of {what} {kind!r} is wrong: {error}") from error


def maker_of(what: str, makers: Mapping[type[C], Any], kinds: Mapping[str, type[C]], config: C) -> Any:
    """What makes the thing that `config` belongs to."""
    maker = makers.get(type(config))
    if maker is None:
        raise UsageError(f"no {what} is made from {type(config).__name__}; known kinds: {', '.join(kinds)}")
    return maker
