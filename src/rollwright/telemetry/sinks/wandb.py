"""Metrics for Weights & Biases. Needs the extra `wandb`; nothing else in Rollwright imports it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rollwright.telemetry.metrics import MetricsSnapshot
from rollwright.wire import UsageError

from .flat import flatten


class WandbSink:
    """One run. It begins in the sink's own thread, because that may take seconds and a network."""

    def __init__(
        self,
        project: str,
        *,
        name: str | None = None,
        mode: str | None = None,
        directory: Path | None = None,
        config: Mapping[str, object] | None = None,
    ) -> None:
        """`mode` is wandb's own: online, offline or disabled; None follows WANDB_MODE."""
        if find_spec("wandb") is None:
            raise UsageError("wandb is not installed; install it with: pip install 'rollwright[wandb]'")
        self._settings = {
            "project": project,
            "name": name,
            "mode": mode,
            "dir": None if directory is None else str(directory),
            "config": dict(config or {}),
        }
        self._run: Any = None

    def open(self) -> None:
        import wandb

        self._run = wandb.init(**self._settings)

    def write(self, snapshot: MetricsSnapshot) -> None:
        self._run.log(flatten(snapshot))

    def close(self) -> None:
        self._run.finish()
