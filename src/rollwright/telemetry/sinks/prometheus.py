"""Metrics for Prometheus: the text format, and a small server that gives it out at /metrics.

The server listens on loopback unless told otherwise: metrics name tasks and models, and it asks nobody for a password.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from aiohttp import web

from rollwright.telemetry.histogram import HistogramSummary
from rollwright.telemetry.metrics import Labels, Metrics, MetricsSnapshot, Point
from rollwright.wire import UsageError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(snapshot: MetricsSnapshot) -> str:
    """The text format, version 0.0.4."""
    lines: list[str] = []
    name = ""
    for point in snapshot.points:
        if point.name != name:
            name = point.name
            if point.help:
                lines.append(f"# HELP {name} {_escape_help(point.help)}")
            lines.append(f"# TYPE {name} {point.kind}")
        lines.extend(_samples(point))
    return "".join(line + "\n" for line in lines)


def _samples(point: Point) -> Iterator[str]:
    if not isinstance(point.value, HistogramSummary):
        yield f"{point.name}{_labels(point.labels)} {_number(point.value)}"
        return
    # Every second power of two is fine enough for a dashboard and half the text.
    for bound, count in point.value.octaves[::2]:
        yield f"{point.name}_bucket{_labels((*point.labels, ('le', _number(bound))))} {count}"
    yield f"{point.name}_bucket{_labels((*point.labels, ('le', '+Inf')))} {point.value.count}"
    yield f"{point.name}_sum{_labels(point.labels)} {_number(point.value.sum)}"
    yield f"{point.name}_count{_labels(point.labels)} {point.value.count}"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{label}="{_escape_label(value)}"' for label, value in labels) + "}"


def _escape_label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))


class PrometheusServer:
    """`async with PrometheusServer(metrics, port=9464) as server`, then scrape `server.url`."""

    def __init__(self, metrics: Metrics, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """Port 0 takes any free one; `url` tells which."""
        self._metrics = metrics
        self._host = host
        self._port = port
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}/metrics"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/metrics", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port).start()
        except OSError as error:
            await runner.cleanup()
            raise UsageError(
                f"metrics cannot be served at {self.url}: {error.strerror}; choose another port"
            ) from error
        self._runner = runner
        self._port = runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.Response:
        # A thousand series take milliseconds to write out, and the loop has other work.
        text = await asyncio.to_thread(lambda: render(self._metrics.snapshot()))
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        await self.stop()
