"""Tasksets by name: an entry point, an import path (`package.module:Class`) or a file (`dir/file.py[:Class]`).

Only what was asked for is imported. Every failure is a UsageError with the cause and, for a misspelt name, the nearest
one.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from rollwright.wire import UsageError
from rollwright.wire.hints import hint

from .taskset import Taskset

GROUP = "rollwright.tasksets"

_FILE = re.compile(r"(?P<path>.+\.py)(?::(?P<class>\w+))?")


def taskset_names() -> list[str]:
    """The names that plugins and we ourselves have given."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def find_taskset(name: str) -> type[Taskset]:
    file = _FILE.fullmatch(name)
    if file:
        return _from_file(Path(file["path"]), file["class"])
    if ":" in name:
        module, _, attribute = name.partition(":")
        return _from_module(_imported(module, name), attribute, name)
    points = {point.value: point for point in entry_points(group=GROUP, name=name)}
    if not points:
        raise UsageError(
            f"taskset {name!r} is not known (it is a name, file.py or package.module:Class); "
            f"{hint(name, taskset_names())}"
        )
    if len(points) > 1:
        raise UsageError(f"taskset {name!r} is claimed by {' and '.join(sorted(points))}; name one of them instead")
    return _from_point(name, *points.values())


def make_taskset(name: str, options: Mapping[str, Any]) -> Taskset:
    """The taskset `name` with its settings."""
    kind = find_taskset(name)
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    for option in options:
        if option not in known:
            raise UsageError(f"taskset {name!r} has no setting {option!r}; {hint(option, known)}")
    try:
        # Not strict: a value from a command line is text, also where a number is meant.
        return msgspec.convert(dict(options), kind, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"a setting of taskset {name!r} is wrong: {error}") from error


def _from_point(name: str, point: EntryPoint) -> type[Taskset]:
    return _from_module(_imported(point.module, name), point.attr, name)


def _imported(module: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:  # The border to the author's code.
        raise UsageError(f"taskset {name!r} could not be imported: {type(error).__name__}: {error}") from error


def _from_module(module: ModuleType, attribute: str, name: str) -> type[Taskset]:
    found = getattr(module, attribute, None)
    if found is None:
        known = [key for key, value in vars(module).items() if _is_taskset(value)]
        raise UsageError(f"{module.__name__} has no {attribute!r}; {hint(attribute, known)}")
    if not _is_taskset(found):
        raise UsageError(f"{name!r} names {attribute}, which is not a Taskset")
    kind: type[Taskset] = found
    return kind


def _from_file(path: Path, attribute: str | None) -> type[Taskset]:
    module = _executed(path)
    if attribute:
        return _from_module(module, attribute, f"{path}:{attribute}")
    own = [value for value in vars(module).values() if _is_taskset(value) and value.__module__ == module.__name__]
    if len(own) == 1:
        kind: type[Taskset] = own[0]
        return kind
    if not own:
        raise UsageError(f"{path} defines no Taskset; give it one class that extends Taskset")
    raise UsageError(f"{path} defines {len(own)} tasksets; name one: {', '.join(f'{path}:{k.__name__}' for k in own)}")


def _executed(path: Path) -> ModuleType:
    """The module in `path`, executed once for each content."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"taskset file {path} cannot be read: {error.strerror}") from error
    digest = hashlib.sha256(str(path.resolve()).encode() + b"\0" + content).hexdigest()[:16]
    name = f"rollwright_file_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        # Not by its loader: byte code would be left beside the file, and be taken for a file that changed since within
        # the same second to another of the same size.
        exec(compile(content, path, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:  # The border to the author's code.
        del sys.modules[name]
        raise UsageError(f"taskset file {path} does not run: {type(error).__name__}: {error}") from error
    return module


def _is_taskset(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Taskset) and value is not Taskset
