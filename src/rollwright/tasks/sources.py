"""Rows of data, from a local JSONL or Parquet file or from the hub. Every complaint names the place and the next step.

Rows are plain dicts; which columns must be there is the caller's to say, and is checked here.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from rollwright.wire import UsageError

Row = dict[str, Any]

_BOM = b"\xef\xbb\xbf"


def read_rows(path: Path, columns: Sequence[str]) -> list[Row]:
    """The rows of a `.jsonl`, `.json` (one object per line) or `.parquet` file."""
    if not path.is_file():
        raise UsageError(f"there is no data file {path}; give the path of a .jsonl or .parquet file")
    try:
        rows = _parquet_rows(path) if path.suffix == ".parquet" else list(_jsonl_rows(path))
    except OSError as error:
        raise UsageError(f"data file {path} cannot be read: {error.strerror or error}") from error
    return _checked(rows, columns, str(path))


def hub_rows(dataset: str, config: str, split: str, columns: Sequence[str]) -> list[Row]:
    """The rows of one split of a dataset on the hub."""
    datasets = _extra("datasets", "hub", "datasets from the hub")
    try:
        rows = [dict(row) for row in datasets.load_dataset(dataset, config or None, split=split)]
    except Exception as error:  # The border to a library that raises anything: no network, no such name, no such split.
        reason = " ".join(str(error).split())[:300]
        raise UsageError(
            f"{dataset} ({split}) could not be loaded from the hub: {type(error).__name__}: {reason}; "
            f"the offline set needs no network"
        ) from error
    return _checked(rows, columns, f"{dataset} ({split})")


def _jsonl_rows(path: Path) -> Iterator[Row]:
    decoder = msgspec.json.Decoder()
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            text = line.removeprefix(_BOM) if number == 1 else line
            if text.strip():
                yield _row(decoder, text, f"{path}, line {number}")


def _row(decoder: msgspec.json.Decoder[Any], line: bytes, where: str) -> Row:
    try:
        # Decoded apart from JSON, which looks for broken text only where it must.
        row = decoder.decode(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: not UTF-8 text (byte {error.start + 1})") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{where}: not valid JSON: {error}") from error
    if not isinstance(row, dict):
        raise UsageError(f"{where}: a row must be a JSON object, not {type(row).__name__}")
    return row


def _parquet_rows(path: Path) -> list[Row]:
    parquet = _extra("pyarrow.parquet", "parquet", "Parquet files")
    try:
        rows: list[Row] = parquet.read_table(path).to_pylist()
    except OSError:
        raise
    except Exception as error:  # The library's own errors; its base class cannot be named before it is imported.
        raise UsageError(f"{path} is not a Parquet file: {' '.join(str(error).split())[:200]}") from error
    return rows


def _extra(module: str, extra: str, what: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"{what} need the extra {extra!r}: pip install 'rollwright[{extra}]'") from error


def _checked(rows: list[Row], columns: Sequence[str], where: str) -> list[Row]:
    if not rows:
        raise UsageError(f"{where} is empty; a dataset needs at least one row")
    for number, row in enumerate(rows, start=1):
        missing = [column for column in columns if row.get(column) is None]
        if missing:
            there = ", ".join(sorted(row)) or "nothing"
            raise UsageError(f"row {number} of {where} has no {' and no '.join(missing)}; it has {there}")
    return rows
