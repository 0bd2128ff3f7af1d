"""Metrics for OpenTelemetry, pushed with OTLP over HTTP. Needs the extra `otel`; nothing else imports it.

The endpoint is configured as for any OpenTelemetry program, with OTEL_EXPORTER_OTLP_ENDPOINT and its kin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any

from rollwright.telemetry.histogram import HistogramSummary
from rollwright.telemetry.metrics import Kind, Labels, MetricsSnapshot, Point
from rollwright.wire import UsageError

_HISTOGRAM_PARTS = {
    "count": Kind.COUNTER,
    "sum": Kind.COUNTER,
    "p50": Kind.GAUGE,
    "p90": Kind.GAUGE,
    "p99": Kind.GAUGE,
    "max": Kind.GAUGE,
}


class OtelSink:
    """Each snapshot is exported at once, in the sink's thread.

    A histogram becomes six instruments (`name.count`, `name.sum` and quantiles): OpenTelemetry takes single
    observations only, and ours are already summed up.
    """

    def __init__(self, service: str = "rollwright", exporter: Any = None) -> None:
        """`exporter` is an OpenTelemetry MetricExporter; None means OTLP over HTTP."""
        if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
            raise UsageError("OpenTelemetry is not installed; install it with: pip install 'rollwright[otel]'")
        self._service = service
        self._exporter = exporter
        self._provider: Any = None
        self._meter: Any = None
        self._values: dict[str, dict[Labels, float]] = {}

    def open(self) -> None:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource

        # The pump keeps the time: the reader exports only when it is flushed.
        reader = PeriodicExportingMetricReader(self._exporter or _otlp_exporter(), export_interval_millis=math.inf)
        self._provider = MeterProvider(
            metric_readers=[reader],
            resource=Resource.create({"service.name": self._service}),
            shutdown_on_exit=False,
        )
        self._meter = self._provider.get_meter("rollwright")

    def write(self, snapshot: MetricsSnapshot) -> None:
        for point in snapshot.points:
            for name, kind, value in _instruments(point):
                if name not in self._values:
                    self._values[name] = {}
                    self._register(name, kind, point.help)
                self._values[name][point.labels] = value
        if not self._provider.force_flush(timeout_millis=10_000):
            raise TimeoutError("OpenTelemetry did not export within 10 s")

    def close(self) -> None:
        self._provider.shutdown()

    def _register(self, name: str, kind: Kind, help_text: str) -> None:
        create = self._meter.create_observable_counter if kind is Kind.COUNTER else self._meter.create_observable_gauge
        create(name, callbacks=[self._reader(name)], description=help_text)

    def _reader(self, name: str) -> Callable[[Any], Iterable[Any]]:
        from opentelemetry.metrics import Observation

        def read(options: Any) -> Iterable[Any]:
            return [Observation(value, dict(labels)) for labels, value in self._values[name].items()]

        return read


def _otlp_exporter() -> Any:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter()


def _instruments(point: Point) -> Iterable[tuple[str, Kind, float]]:
    if not isinstance(point.value, HistogramSummary):
        return [(point.name, point.kind, point.value)]
    return [(f"{point.name}.{part}", kind, getattr(point.value, part)) for part, kind in _HISTOGRAM_PARTS.items()]
