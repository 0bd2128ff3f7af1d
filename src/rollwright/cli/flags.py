"""The command line: words, `@ file.toml`, and flags with dotted names. tyro reads the values and prints the help.

Our own pass comes first and only cuts the line into pieces, because some of it is ours: the taskset is a word whose
settings are known after it is found, `@` names files, a switch may stand alone, and what is refused is refused in one
sentence.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from rollwright.wire import UsageError
from rollwright.wire.hints import nearest

from .fields import Setting, read, said
from .talk import reader_left

S = TypeVar("S", bound=msgspec.Struct)

_SWITCH_WORDS = {"true", "false"}


class Line(msgspec.Struct, frozen=True):
    """A command line, cut."""

    words: tuple[str, ...]
    files: tuple[Path, ...]
    given: dict[str, tuple[str, ...]]
    """The words of each flag by dotted key; of a repeated flag, the last."""
    help: bool


def cut(
    verb: str, argv: Sequence[str], known: Mapping[str, Setting], aliases: Mapping[str, str], *, open_table: str = ""
) -> Line:
    """Cut the line. Flags under `open_table` are not known yet: each takes one word."""
    words: list[str] = []
    files: list[Path] = []
    given: dict[str, tuple[str, ...]] = {}
    wants_help = False
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word in ("-h", "--help"):
            wants_help = True
        elif word.startswith("@"):
            files.append(_file(word, rest))
        elif word.endswith(".toml") and not _is_flag(word):
            # No taskset is called so.
            files.append(Path(word))
        elif _is_flag(word):
            name, equals, value = word.partition("=")
            if equals:
                rest.insert(0, value)
            setting = _setting(verb, name, known, aliases, open_table)
            given[setting.key] = _values(name, setting, rest, bool(equals))
        else:
            words.append(word)
    return Line(tuple(words), tuple(files), given, wants_help)


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and not re.fullmatch(r"-\.?\d.*", word)


def _file(word: str, rest: list[str]) -> Path:
    if len(word) > 1:
        return Path(word[1:])
    if not rest:
        raise UsageError("@ needs a settings file after it: @ settings.toml")
    return Path(rest.pop(0))


def _setting(
    verb: str, name: str, known: Mapping[str, Setting], aliases: Mapping[str, str], open_table: str
) -> Setting:
    key = aliases.get(name) or (name[2:].replace("-", "_") if name.startswith("--") else "")
    if key in known:
        return known[key]
    if open_table and key.startswith(open_table + "."):
        return Setting(key, str)
    flags = [setting.flag for setting in known.values()] + list(aliases)
    close = nearest(name, flags)
    hint = f"did you mean {close}?" if close else f"see: rollwright {verb} --help"
    raise UsageError(f"{name} is not a setting of {verb}; {hint}")


def _values(name: str, setting: Setting, rest: list[str], equals: bool) -> tuple[str, ...]:
    """Take the words that belong to a flag off the rest of the line."""
    if setting.kind == "file only":
        raise UsageError(f"{name} is a table that flags cannot spell; set {setting.key} in a file: @ settings.toml")
    if setting.kind == "switch" and not equals and (not rest or rest[0].lower() not in _SWITCH_WORDS):
        return ("true",)
    if setting.kind == "many" and not equals:
        values = []
        while rest and not _is_flag(rest[0]) and not rest[0].startswith("@"):
            values.append(rest.pop(0))
        return tuple(values)
    if not rest or (not equals and _is_flag(rest[0])):
        raise UsageError(f"{name} needs a value: {said(setting.type)}")
    return (rest.pop(0),)


def checked(given: Mapping[str, tuple[str, ...]], known: Mapping[str, Setting]) -> dict[str, Any]:
    """The flags' values by dotted key, each of its setting's type."""
    found = {}
    for key, words in given.items():
        setting = known[key]
        try:
            found[key] = read(_spelled(setting, words), setting, text=True)
        except (msgspec.ValidationError, ValueError) as error:
            got = " ".join(words) or "nothing"
            raise UsageError(f"{setting.flag} takes {said(setting.type)}, not {got!r}") from error
    return found


def _spelled(setting: Setting, words: Sequence[str]) -> Any:
    if setting.kind != "many":
        return words[0]
    if "a table" not in said(setting.type):
        return words[0] if len(words) == 1 and words[0].lower() == "none" else words
    return dict(zip(words[::2], words[1::2], strict=True))


def apply(default: S, given: Mapping[str, tuple[str, ...]], known: Mapping[str, Setting], prog: str) -> S:
    """`default` with the flags over it, read by tyro."""
    if not given:
        return default
    # A tag is checked by now, and tyro does not know it.
    args = [word for key, words in given.items() if not known[key].tag for word in _spoken(known[key], words)]
    heard = io.StringIO()
    try:
        with contextlib.redirect_stderr(heard), contextlib.redirect_stdout(heard):
            return _tyro(type(default), default, args, prog, {})
    except SystemExit:
        raise UsageError(f"{_unboxed(heard.getvalue())}; see: {prog} --help") from None


def print_help(default: msgspec.Struct, prog: str, aliases: Mapping[str, str], description: str) -> None:
    """The page of all settings, on stdout."""
    try:
        _tyro(_with_aliases(type(default), aliases), default, ["--help"], prog, {"description": description})
    except BrokenPipeError:
        reader_left()
    except SystemExit:
        # That is how tyro ends a help page.
        pass


def _spoken(setting: Setting, words: Sequence[str]) -> Iterator[str]:
    if setting.kind == "many":
        yield from (setting.flag, *words)
    else:
        # One word, so that a value that begins with a dash stays a value.
        yield f"{setting.flag}={words[0]}"


def _tyro(kind: type[S], default: Any, args: Sequence[str], prog: str, extra: Mapping[str, Any]) -> S:
    import tyro

    config = (
        tyro.conf.FlagConversionOff,
        tyro.conf.AvoidSubcommands,
        tyro.conf.EnumChoicesFromValues,
        tyro.conf.HelptextFromCommentsOff,
    )
    found: S = tyro.cli(kind, prog=prog, args=args, default=default, config=config, registry=_registry(), **extra)
    return found


def _registry() -> Any:
    """tyro spells true and none with capitals only; TOML writes true, and people write both."""
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec

    registry = ConstructorRegistry()
    words: dict[Any, dict[str, Any]] = {
        bool: {"true": True, "false": False, "1": True, "0": False},
        type(None): {"none": None},
    }

    def rule(info: Any) -> Any:
        table = words.get(info.type)
        if table is None:
            return None

        def instance(args: list[str]) -> Any:
            if args[0].lower() not in table:
                raise ValueError(f"expected {' or '.join(table)}")
            return table[args[0].lower()]

        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="[true|false]" if info.type is bool else "none",
            instance_from_str=instance,
            is_instance=lambda value: isinstance(value, info.type),
            str_from_instance=lambda value: [str(value).lower()],
        )

    registry.primitive_rule(rule)
    return registry


def _with_aliases(kind: type[S], aliases: Mapping[str, str]) -> type[S]:
    """`kind` with its short names told to tyro. The docstrings under its fields are found through its base."""
    import tyro

    short: dict[str, list[str]] = {}
    for alias, key in aliases.items():
        if "." not in key:
            short.setdefault(key, []).append(alias)
    fields: list[Any] = []
    for field in msgspec.structs.fields(kind):
        if field.name in short:
            shown: Any = Annotated[field.type, tyro.conf.arg(aliases=short[field.name])]
            fields.append((field.name, shown, field.default))
    twin: Any = msgspec.defstruct(
        kind.__name__, fields, bases=(kind,), frozen=True, kw_only=True, namespace={"__doc__": kind.__doc__}
    )
    return twin  # type: ignore[no-any-return]


def _unboxed(text: str) -> str:
    """The first paragraph of what tyro draws a box around, as one line."""
    lines = [line.strip("│╭╮╰╯ ") for line in text.splitlines()]
    body = [line for line in lines if line]
    told = []
    for line in body[1:]:
        if not line.strip("─"):
            break
        told.append(line)
    return " ".join(told).rstrip(".") or "the command line could not be read"
