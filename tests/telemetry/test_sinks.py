"""What each sink writes."""

import io
import json
import math
import re
import subprocess
import sys

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.telemetry import Metrics
from rollwright.telemetry.sinks import ConsoleSink, JsonlSink
from rollwright.telemetry.sinks.flat import flatten
from rollwright.telemetry.sinks.otel import OtelSink
from rollwright.telemetry.sinks.prometheus import PrometheusServer, render
from rollwright.telemetry.sinks.wandb import WandbSink
from rollwright.wire import UsageError


@pytest.fixture
def metrics():
    metrics = Metrics()
    metrics.counter("rollouts_total", "Finished rollouts.", layer="engine").inc(3)
    metrics.gauge("in_flight").set(4)
    for value in (0.25, 0.5, 4.0):
        metrics.histogram("turn_seconds", "One turn.").observe(value)
    return metrics


def test_flat_has_one_number_per_key(metrics):
    flat = flatten(metrics.snapshot())
    assert flat["rollouts_total{layer=engine}"] == 3
    assert flat["in_flight"] == 4
    assert (flat["turn_seconds.count"], flat["turn_seconds.max"], flat["turn_seconds.sum"]) == (3, 4.0, 4.75)
    assert all(isinstance(value, int | float) for value in flat.values())


def test_jsonl_appends_one_line_per_snapshot(metrics, tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    for _ in range(2):
        sink = JsonlSink(path)
        sink.open()
        sink.write(metrics.snapshot())
        sink.close()
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert first["metrics"]["in_flight"] == 4
    assert second["time"] >= first["time"]


def test_jsonl_stays_json_when_a_gauge_is_no_number(tmp_path):
    metrics = Metrics()
    metrics.gauge("reward").set(math.nan)
    sink = JsonlSink(tmp_path / "m.jsonl")
    sink.open()
    sink.write(metrics.snapshot())
    sink.close()
    assert json.loads((tmp_path / "m.jsonl").read_text())["metrics"]["reward"] is None


def test_a_closed_file_is_an_error_for_the_pump_to_count(metrics, tmp_path):
    sink = JsonlSink(tmp_path / "m.jsonl")
    with pytest.raises(ValueError, match="not open"):
        sink.write(metrics.snapshot())
    sink.close()


def test_console_says_one_line(metrics):
    stream = io.StringIO()
    sink = ConsoleSink(["in_flight", "turn_seconds"], stream)
    sink.open()
    sink.write(metrics.snapshot())
    sink.close()
    assert re.fullmatch(r"\d\d:\d\d:\d\d in_flight=4 turn_seconds=p50 0.5 p99 4 of 3\n", stream.getvalue())


def test_console_talks_to_stderr_about_everything(metrics, capsys):
    ConsoleSink().write(metrics.snapshot())
    out, err = capsys.readouterr()
    assert out == ""
    assert "rollouts_total{layer=engine}=3" in err


SAMPLE = re.compile(r'(\w+)(?:\{((?:\w+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)')
LABEL = re.compile(r'(\w+)="((?:[^"\\\n]|\\.)*)"')
PLAIN = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def parsed(text):
    """A reader of the Prometheus text format, strict about every line."""
    samples = {}
    for line in text.split("\n")[:-1]:
        if line.startswith(("# TYPE ", "# HELP ")):
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        pairs = LABEL.findall(match[2] or "")
        labels = tuple((key, re.sub(r"\\.", lambda found: PLAIN[found[0]], value)) for key, value in pairs)
        samples[match[1], labels] = float(match[3])
    return samples


@given(st.text(), st.floats(), st.text())
def test_prometheus_text_reads_back(value, number, help_text):
    metrics = Metrics()
    metrics.gauge("g", help_text, a=value, b="x").set(number)
    read = parsed(render(metrics.snapshot()))["g", (("a", value), ("b", "x"))]
    assert read == number or (math.isnan(read) and math.isnan(number))


def test_prometheus_histograms_are_cumulative(metrics):
    text = render(metrics.snapshot())
    assert "# TYPE turn_seconds histogram\n" in text
    assert "# HELP turn_seconds One turn.\n" in text
    samples = parsed(text)
    buckets = [(float(labels[0][1]), n) for (name, labels), n in samples.items() if name == "turn_seconds_bucket"]
    assert buckets == sorted(buckets)
    assert [n for _, n in buckets] == sorted(n for _, n in buckets)
    assert dict(buckets)[0.25] == 1
    assert dict(buckets)[1.0] == 2
    assert dict(buckets)[math.inf] == samples["turn_seconds_count", ()] == 3
    assert samples["turn_seconds_sum", ()] == 4.75


async def test_the_server_answers_on_loopback(metrics):
    async with PrometheusServer(metrics) as server, aiohttp.ClientSession() as session:
        assert server.url.startswith("http://127.0.0.1:")
        async with session.get(server.url) as reply:
            assert reply.status == 200
            assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert parsed(await reply.text())["in_flight", ()] == 4
        metrics.gauge("in_flight").set(5)
        async with session.get(server.url) as reply:
            assert parsed(await reply.text())["in_flight", ()] == 5
    await server.stop()


async def test_a_taken_port_is_said_in_one_sentence(metrics):
    async with PrometheusServer(metrics) as server:
        port = int(server.url.rsplit(":", 1)[1].removesuffix("/metrics"))
        second = PrometheusServer(metrics, port=port)
        with pytest.raises(UsageError, match=f"cannot be served at .*:{port}/metrics: .* choose another port"):
            await second.start()
        await second.stop()


@pytest.mark.parametrize(("room", "make"), [("wandb", lambda: WandbSink("project")), ("otel", OtelSink)])
def test_a_missing_extra_is_named(room, make, monkeypatch):
    monkeypatch.setattr(f"rollwright.telemetry.sinks.{room}.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=re.escape(f"pip install 'rollwright[{room}]'")):
        make()


def test_importing_the_room_loads_nothing_heavy():
    code = (
        "import sys, rollwright.telemetry, rollwright.telemetry.sinks;"
        "print([m for m in ('aiohttp', 'uvloop', 'rich', 'wandb', 'opentelemetry', 'numpy') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == "[]\n"
