"""One directory per run: what was asked, what finished, what failed, and the sum of it.

    config.toml      the resolved settings
    traces.jsonl     one line for each finished rollout, appended and on disk before the run counts it
    failures.jsonl   the same for rollouts that failed; a later resume may still finish them
    arrays.bin       the arrays of both, end to end; a line's `frames` says where its own lie
    metrics.jsonl    numbers over time
    summary.json     the result

Arrays are written and synced before the line that refers to them, so a line that is there can be read. A process that
was killed leaves at most one torn last line; the next writer cuts it off.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from rollwright.wire import Trace, UsageError, WireError
from rollwright.wire.codec import Buffer, decode_json, encode_json
from rollwright.wire.durable import hold_directory, replace_file
from rollwright.wire.mapping import map_file

from .toml import differing_key, write_toml

TRACES, FAILURES, ARRAYS = "traces.jsonl", "failures.jsonl", "arrays.bin"


class _Frames(msgspec.Struct):
    """The part of a line that says where its arrays are: pairs of offset and length."""

    frames: list[tuple[int, int]] = []


class RunDirectory:
    """The files of one run, held by one process at a time. All methods block on the disk: call them from a thread."""

    def __init__(self, path: Path, done: set[tuple[str, int]], lock: int) -> None:
        self.path = path
        self.done = done
        """Keys of the rollouts that finished, in this run of the process or before."""
        self._lock = lock
        self._traces, self._failures, self._arrays = (_appender(path / name) for name in (TRACES, FAILURES, ARRAYS))

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> Self:
        """A new run. A directory that already holds one is refused."""
        path.mkdir(parents=True, exist_ok=True)
        lock = hold_directory(path)
        if (path / "config.toml").exists():
            os.close(lock)
            raise UsageError(f"{path} already holds a run; add --resume to go on with it, or name another directory")
        replace_file(path / "config.toml", write_toml(config).encode())
        return cls(path, set(), lock)

    @classmethod
    def resume(cls, path: Path, config: Mapping[str, Any], *, may_change: frozenset[str] = frozenset()) -> Self:
        """Go on with a run whose settings are the same, but for the dotted keys that change no result."""
        try:
            before = tomllib.loads((path / "config.toml").read_text())
        except FileNotFoundError:
            raise UsageError(f"{path} holds no run to resume; leave out --resume to begin one") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{path / 'config.toml'} cannot be read: {error}") from error
        changed = differing_key(before, tomllib.loads(write_toml(config)), may_change)
        if changed:
            raise UsageError(f"{path} was run with other settings: {changed}; use the old value or another directory")
        lock = hold_directory(path)
        try:
            cut_torn_line(path / TRACES)
            cut_torn_line(path / FAILURES)
            done = {trace.key for trace in read_traces(path)}
        except BaseException:
            os.close(lock)
            raise
        return cls(path, done, lock)

    def append(self, traces: Sequence[Trace]) -> None:
        """Make finished and failed rollouts durable, in order. A key that is already there is refused."""
        offset = os.fstat(self._arrays).st_size
        arrays: list[Buffer] = []
        lines: dict[int, list[bytes]] = {self._traces: [], self._failures: []}
        for trace in traces:
            if trace.failure is None and trace.key in self.done:
                raise ValueError(f"{trace.task_id}#{trace.attempt} is already in {self.path}")
            text, frames = encode_json(trace)
            places = []
            for frame in frames:
                places.append((offset, len(frame)))
                offset += len(frame)
            arrays.extend(frames)
            target = self._traces if trace.failure is None else self._failures
            # The line is the trace itself plus one key, so that `jq .reward` works on it.
            lines[target].append(text[:-1] + b',"frames":' + msgspec.json.encode(places) + b"}\n")
        _write_all(self._arrays, arrays)
        for target, parts in lines.items():
            _write_all(target, [b"".join(parts)] if parts else [])
        self.done.update(trace.key for trace in traces if trace.failure is None)

    def write_summary(self, summary: Any) -> None:
        replace_file(self.path / "summary.json", msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")

    def close(self) -> None:
        for descriptor in (self._traces, self._failures, self._arrays, self._lock):
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_traces(path: Path, name: str = TRACES, *, wanted: Callable[[Trace], bool] | None = None) -> Iterator[Trace]:
    """The rollouts in a run's file, oldest first. Arrays are views of the mapped array file. A torn last line is
    passed over; damage anywhere else is named."""
    frames_of = _array_reader(path / ARRAYS)
    for number, line in enumerate(_lines(path / name), 1):
        try:
            trace = decode_json(line, frames_of(msgspec.json.decode(line, type=_Frames).frames), Trace)
        except (WireError, msgspec.DecodeError) as error:
            raise UsageError(f"line {number} of {path / name} is damaged ({error}); remove it and resume") from error
        if wanted is None or wanted(trace):
            yield trace


def cut_torn_line(path: Path) -> int:
    """Cut the file after its last whole line and return how many bytes went."""
    if not path.exists():
        return 0
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        end = size
        while end > 0:
            start = max(0, end - 65536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            file.truncate(end)
        return size - end


def _lines(path: Path) -> Iterator[bytes]:
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


def _array_reader(path: Path) -> Callable[[Iterable[tuple[int, int]]], list[Buffer]]:
    held: list[memoryview] = []

    def frames_of(places: Iterable[tuple[int, int]]) -> list[Buffer]:
        found: list[Buffer] = []
        for offset, length in places:
            if length == 0:
                found.append(b"")
                continue
            if not held:
                held.append(_mapped(path))
            if offset < 0 or length < 0 or offset + length > len(held[0]):
                raise WireError(f"its arrays are not in {path}")
            found.append(held[0][offset : offset + length])
        return found

    return frames_of


def _mapped(path: Path) -> memoryview:
    try:
        return map_file(path)
    except (FileNotFoundError, WireError) as error:  # An empty file cannot be mapped.
        raise WireError(f"its arrays are not in {path}") from error


def _appender(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def _write_all(descriptor: int, parts: Sequence[Buffer]) -> None:
    if not parts:
        return
    size = os.fstat(descriptor).st_size
    try:
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[os.write(descriptor, view) :]
        os.fdatasync(descriptor)
    except OSError:
        # A full disk must not leave half a line in front of the lines that follow once there is room again.
        os.ftruncate(descriptor, size)
        raise
