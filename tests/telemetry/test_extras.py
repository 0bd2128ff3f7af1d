"""The sinks of extras, against the real packages where they are installed."""

import pytest

from rollwright.telemetry import Metrics, MetricsPump


@pytest.fixture
def metrics():
    metrics = Metrics()
    metrics.counter("rollouts_total", "Finished rollouts.", layer="engine").inc(3)
    metrics.gauge("in_flight").set(4)
    metrics.histogram("turn_seconds").observe(0.5)
    return metrics


@pytest.mark.filterwarnings("default")
def test_wandb_writes_a_run(metrics, tmp_path):
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    from rollwright.telemetry.sinks.wandb import WandbSink

    sink = WandbSink("telemetry", name="test", mode="offline", directory=tmp_path, config={"seed": 1})
    with MetricsPump(metrics, [sink], interval_s=3600, close_within_s=60) as pump:
        pass
    (stats,) = pump.stats
    assert (stats.written, stats.failures) == (1, 0)
    (log,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    content = log.read_bytes()
    assert b"rollouts_total{layer=engine}" in content
    assert b"turn_seconds.p99" in content


@pytest.mark.filterwarnings("default")
def test_otel_exports_every_snapshot(metrics):
    pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult

    from rollwright.telemetry.sinks.otel import OtelSink

    class Keeps(MetricExporter):
        def __init__(self):
            super().__init__()
            self.exports = []
            self.ended = False

        def export(self, metrics_data, timeout_millis=0, **kwargs):
            self.exports.append(values_of(metrics_data))
            return MetricExportResult.SUCCESS

        def force_flush(self, timeout_millis=0):
            return True

        def shutdown(self, timeout_millis=0, **kwargs):
            self.ended = True

    def values_of(data):
        found = {}
        for resource in data.resource_metrics:
            assert resource.resource.attributes["service.name"] == "tests"
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                for point in metric.data.data_points:
                    found[metric.name, tuple(sorted(point.attributes.items()))] = point.value
        return found

    exporter = Keeps()
    sink = OtelSink("tests", exporter)
    sink.open()
    sink.write(metrics.snapshot())
    metrics.counter("rollouts_total", layer="engine").inc()
    metrics.counter("rollouts_total", layer="task").inc()
    sink.write(metrics.snapshot())
    sink.close()
    first, second = exporter.exports[:2]
    assert first["rollouts_total", (("layer", "engine"),)] == 3
    assert first["in_flight", ()] == 4
    assert first["turn_seconds.count", ()] == 1
    assert second["rollouts_total", (("layer", "engine"),)] == 4
    assert second["rollouts_total", (("layer", "task"),)] == 1
    assert exporter.ended
