"""Where a process's metrics go, as a person chooses it: always to a file, and to what else is wanted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from rollwright.wire import UsageError

from .metrics import Metrics
from .pump import MetricsPump, Sink
from .sinks import JsonlSink


class MetricsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where metrics go besides metrics.jsonl."""

    interval_s: float = 5.0
    """Seconds between two snapshots."""
    prometheus_port: int = 0
    """Port of this machine's loopback where Prometheus finds them; 0 is none."""
    wandb_project: str = ""
    """Weights & Biases project; empty is none. Needs the extra wandb."""
    otel: bool = False
    """Push them to OTEL_EXPORTER_OTLP_ENDPOINT. Needs the extra otel."""

    def __post_init__(self) -> None:
        if not self.interval_s > 0:
            raise UsageError(f"metrics.interval_s is {self.interval_s}; set it to more than 0")
        if not 0 <= self.prometheus_port <= 65535:
            raise UsageError(f"metrics.prometheus_port is {self.prometheus_port}; set it to a port, or to 0 for none")


@asynccontextmanager
async def publishing(metrics: Metrics, config: MetricsConfig, path: Path, *, name: str = "") -> AsyncIterator[None]:
    """Publish `metrics` until the block ends; the last snapshot is written then. `name` is that of the run."""
    async with AsyncExitStack() as stack:
        if config.prometheus_port:
            from .sinks.prometheus import PrometheusServer

            await stack.enter_async_context(PrometheusServer(metrics, port=config.prometheus_port))
        await stack.enter_async_context(
            MetricsPump(metrics, [JsonlSink(path), *_sinks(config, name)], interval_s=config.interval_s)
        )
        yield


def _sinks(config: MetricsConfig, name: str) -> list[Sink]:
    sinks: list[Sink] = []
    if config.wandb_project:
        from .sinks.wandb import WandbSink

        sinks.append(WandbSink(config.wandb_project, name=name or None))
    if config.otel:
        from .sinks.otel import OtelSink

        sinks.append(OtelSink())
    return sinks
