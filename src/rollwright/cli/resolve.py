"""From a command line to settings: defaults, then files in the order given, then flags; the later wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from rollwright.engines.config import EngineConfig
from rollwright.harnesses import HARNESS_KINDS
from rollwright.runtimes import RUNTIME_KINDS
from rollwright.tasks import Taskset, find_taskset, taskset_names
from rollwright.wire import UsageError
from rollwright.wire.hints import hint

from . import files, flags
from .fields import Setting, said, settings_of
from .settings import ALIASES, RolloutSettings

S = TypeVar("S", bound=RolloutSettings)

SOLVER = "rollwright.tasks.oracle:solver"
_OVER_HTTP = ("relay", "tokens")


class Resolved(msgspec.Struct, Generic[S], frozen=True):
    """What was asked for."""

    settings: S
    taskset_name: str

    def engine_config(self, *, tokens: bool = False) -> EngineConfig:
        """The engine, told what follows from the other settings: its address, and who solves the tasks."""
        settings = self.settings
        engine = settings.engine
        scripted = engine.scripted
        if not scripted.solver:
            options = {"taskset": self.taskset_name, "options": msgspec.to_builtins(settings.taskset)}
            scripted = msgspec.structs.replace(scripted, solver=SOLVER, solver_options=options)
        if tokens:
            scripted = msgspec.structs.replace(scripted, tokens=True)
        return msgspec.structs.replace(engine, scripted=scripted)


def resolve(kind: type[S], argv: Sequence[str]) -> Resolved[S] | None:
    """The settings, or None if the help was asked for and shown."""
    first, layers, name = _first_look(kind, argv)
    if not name:
        if first.help:
            _help(with_kinds(kind, Taskset, _chosen(kind, first, layers))(), "TASKSET")
            return None
        known = ", ".join(taskset_names())
        raise UsageError(f"{kind.verb} needs a taskset: rollwright {kind.verb} NAME, with {known} or file.py")
    typed = with_kinds(kind, find_taskset(name), _chosen(kind, first, layers))
    known_settings = settings_of(typed)
    _refuse_other_kinds(kind, first, known_settings)
    line = flags.cut(kind.verb, argv, known_settings, ALIASES)
    if line.help:
        _help(_helpful(typed), name)
        return None
    return _merged(typed, name, line, layers, known_settings)


def _first_look(kind: type[S], argv: Sequence[str]) -> tuple[flags.Line, list[files.Layer], str]:
    """Enough of the line to find the taskset and the kinds, whose settings the second look needs."""
    line = flags.cut(kind.verb, argv, _settings_of_any(kind), ALIASES, open_table="taskset")
    layers = [files.read_layer(path) for path in line.files]
    # The first word decides where there is one: behind an unknown flag, a word may be that flag's value.
    words = argv[:1] if argv and not argv[0].startswith(("-", "@")) and not argv[0].endswith(".toml") else line.words
    if words is line.words and len(words) > 1:
        raise UsageError(f"{kind.verb} takes one taskset, but got {' and '.join(words)}; put it first")
    names = [*(layer.taskset for layer in layers if layer.taskset), *words]
    return line, layers, names[-1] if names else ""


def _merged(
    typed: type[S], name: str, line: flags.Line, layers: Sequence[files.Layer], known: Mapping[str, Setting]
) -> Resolved[S]:
    if len(line.words) > 1:
        raise UsageError(f"{typed.verb} takes one taskset, but got {' and '.join(line.words)}; leave one out")
    values: dict[str, Any] = {}
    for layer in layers:
        values.update(files.checked(layer, known))
    spoken = flags.checked(line.given, known)
    for key, setting in known.items():
        if setting.required and key not in values:
            if key not in spoken:
                raise UsageError(f"taskset {name!r} needs a setting: {setting.flag} with {said(setting.type)}")
            values[key] = spoken[key]
    given = frozenset(values) | frozenset(spoken)
    default = _converted(typed, values)
    settings = flags.apply(default, line.given, known, f"rollwright {typed.verb}")
    return Resolved(_settled(settings, given), name)


def _converted(typed: type[S], values: Mapping[str, Any]) -> S:
    try:
        return msgspec.convert(msgspec.to_builtins(files.nested(values)), typed)
    except msgspec.ValidationError as error:
        # Each value fits its own setting by now; what is left is a rule of the struct around them.
        text, _, place = str(error).partition(" - at `$.")
        raise UsageError(f"{place.rstrip('`') or 'a setting'} is wrong: {text}; see --help") from error


def _settled(settings: S, given: frozenset[str]) -> S:
    """What follows from other settings: the engine's kind from its address, its seed, the model's name where the
    engine has just one."""
    engine, base_url = settings.engine, settings.base_url
    if base_url:
        if "engine.kind" in given and engine.kind not in _OVER_HTTP:
            text = f"--base-url goes with the engines relay and tokens, not with {engine.kind}"
            raise UsageError(f"{text}; leave one of them out")
        if "engine.relay.base_url" in given and engine.relay.base_url != base_url:
            raise UsageError("base_url and engine.relay.base_url differ; leave one of them out")
        engine = msgspec.structs.replace(engine, relay=msgspec.structs.replace(engine.relay, base_url=base_url))
    if engine.relay.base_url and "engine.kind" not in given:
        engine = msgspec.structs.replace(engine, kind="relay")
    if "engine.scripted.seed" not in given:
        engine = msgspec.structs.replace(engine, scripted=msgspec.structs.replace(engine.scripted, seed=settings.seed))
    model = settings.model or ("" if engine.kind in _OVER_HTTP else engine.kind)
    if not model:
        raise UsageError(f"the {engine.kind} engine needs to know which model to ask for; add -m MODEL")
    return msgspec.structs.replace(settings, engine=engine, model=model, base_url="")


def with_kinds(kind: type[S], taskset: type[Taskset], chosen: Mapping[str, type[msgspec.Struct]]) -> type[S]:
    """`kind` with the settings of the chosen taskset and of the chosen kinds of box and harness."""
    fields: list[Any] = [_field("taskset", taskset), *(_field(name, config) for name, config in chosen.items())]
    typed: Any = msgspec.defstruct(
        kind.__name__,
        fields,
        bases=(kind,),
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
        namespace={"__doc__": kind.__doc__},
    )
    return typed  # type: ignore[no-any-return]


def _field(name: str, chosen: type[msgspec.Struct]) -> tuple[Any, ...]:
    needs = any(field.required for field in msgspec.structs.fields(chosen))
    return (name, chosen) if needs else (name, chosen, chosen())


def _settings_of_any(kind: type[S]) -> dict[str, Setting]:
    """The settings of `kind` with those of every kind of box and harness, before it is known which one is meant."""
    known = settings_of(kind)
    for table, choice in kind.choices.items():
        for config in choice.kinds.values():
            known = {**settings_of(config, f"{table}."), **known}
        known[f"{table}.kind"] = Setting(f"{table}.kind", str)
    return known


def _chosen(kind: type[S], line: flags.Line, layers: Sequence[files.Layer]) -> dict[str, type[msgspec.Struct]]:
    """The kind that each table is of."""
    found = {}
    for table, choice in kind.choices.items():
        named = [_kind_in(layer, table) for layer in layers] + list(line.given.get(f"{table}.kind", ()))
        name = next((name for name in reversed(named) if name), choice.default)
        if name not in choice.kinds:
            raise UsageError(f"{table} {name!r} is not known; {hint(name, choice.kinds)}")
        found[table] = choice.kinds[name]
    return found


def _refuse_other_kinds(kind: type[S], line: flags.Line, known: Mapping[str, Setting]) -> None:
    """A setting of another kind is refused by naming that kind."""
    for key in line.given:
        table = key.partition(".")[0]
        if table in kind.choices and key not in known:
            choice = kind.choices[table]
            names = [name for name, config in choice.kinds.items() if key in settings_of(config, f"{table}.")]
            flag = Setting(key, str).flag
            named = f"{' and '.join(names)} {choice.called}"
            raise UsageError(f"{flag} is a setting of {named}; add --{table} {names[0]}")


def _kind_in(layer: files.Layer, table: str) -> str:
    settings = layer.table.get(table, {})
    name = settings.get("kind", "") if isinstance(settings, dict) else ""
    # Where it is no name at all, the check of the file tells so.
    return name if isinstance(name, str) else ""


def _helpful(typed: type[S]) -> S:
    """An instance to show defaults of. What has none is shown as empty."""
    (field,) = [field for field in msgspec.structs.fields(typed) if field.name == "taskset"]
    if not field.required:
        return typed()
    blank = {inner.name: "" for inner in msgspec.structs.fields(field.type) if inner.required}
    return typed(taskset=field.type(**blank))


def _help(default: RolloutSettings, name: str) -> None:
    verb = default.verb
    description = (
        f"{type(default).__doc__} TASKSET is a name ({', '.join(taskset_names())}), file.py or package.module:Class. "
        "Settings are read from TOML files (@ file.toml) and then from these flags; the later wins. "
        "--engine KIND is short for --engine.kind KIND. "
        f"--runtime KIND chooses the box: {', '.join(RUNTIME_KINDS)}. "
        f"--harness KIND chooses the program that drives the model: {', '.join(HARNESS_KINDS)}."
    )
    aliases = {alias: key for alias, key in ALIASES.items() if hasattr(default, key)}
    flags.print_help(default, f"rollwright {verb} {name} [@ FILE.toml]", aliases, description)
