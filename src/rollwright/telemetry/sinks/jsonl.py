"""One line of JSON per snapshot, appended to a file: `{"time": ..., "metrics": {key: number}}`."""

from __future__ import annotations

from io import FileIO
from pathlib import Path

import msgspec

from rollwright.telemetry.metrics import MetricsSnapshot

from .flat import flatten


class JsonlSink:
    """Each line is one write to a file opened for appending, so a killed process tears at most the last line.

    Numbers that JSON has no word for (NaN, infinities) become null.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None

    def open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = FileIO(str(self._path), "a")

    def write(self, snapshot: MetricsSnapshot) -> None:
        if self._file is None:
            raise ValueError("the sink is not open")
        line = msgspec.json.encode({"time": snapshot.time, "metrics": flatten(snapshot)}) + b"\n"
        while line:
            line = line[self._file.write(line) :]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
