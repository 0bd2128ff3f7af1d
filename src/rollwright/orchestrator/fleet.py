"""The engines that sample for a run: how they are told of new weights, and what they tell about their load.

A protocol is a list of requests that every engine gets, in order. An engine that was paused is resumed whatever
happens, and one that cannot be brought to the new version ends the run: it would go on sampling by the old one.
"""

from __future__ import annotations

import asyncio
import os
import re
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import aiohttp
import msgspec

from rollwright.wire import RollwrightError, UsageError

from .concurrency import EngineGauge
from .contracts import PolicyVersion

Protocol = Literal["rollwright", "vllm", "sglang"]
_RETRIES = 3
_GAUGE_TIMEOUT_S = 2.0
_RESUME_TIMEOUT_S = 30.0
_RUNNING = ("rollwright:running", "vllm:num_requests_running", "sglang:num_running_reqs")
_WAITING = ("rollwright:waiting", "vllm:num_requests_waiting", "sglang:num_queue_reqs")
_CACHE = ("rollwright:cache", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")


class PolicyRefused(RollwrightError):
    """An engine could not be brought to a policy version."""


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The engines that serve new weights."""

    urls: tuple[str, ...] = ()
    """Address of every single engine, not of a router before them. Empty: they learn of new weights by themselves."""
    protocol: Protocol = "rollwright"
    """rollwright: POST /policy. vllm: pause, reload_weights, resume (needs VLLM_SERVER_DEV_MODE=1). sglang: pause,
    update_weights_from_disk, continue."""
    api_key_env: str = ""
    """Name of the environment variable that holds their key. Empty sends none."""
    timeout_s: float = 600.0
    """Longest time for one engine to load one version."""

    def __post_init__(self) -> None:
        for url in self.urls:
            if not re.match(r"https?://[^/]", url):
                raise UsageError(f"fleet.urls has {url!r}, which is no address; write http://HOST:PORT")
        if not self.timeout_s > 0:
            raise UsageError(f"fleet.timeout_s is {self.timeout_s}; set it to more than 0")


class _Request(NamedTuple):
    path: str
    body: dict[str, Any]


class _Protocol(NamedTuple):
    pause: _Request | None
    load: _Request
    resume: _Request | None


def _protocol(name: Protocol, policy: PolicyVersion) -> _Protocol:
    if name == "vllm":
        reload = {"method": "reload_weights", "kwargs": {"weights_path": policy.path}}
        # What is being sampled goes on with the new weights where it stood.
        return _Protocol(_Request("/pause?mode=keep", {}), _Request("/collective_rpc", reload), _Request("/resume", {}))
    if name == "sglang":
        load = {"model_path": policy.path, "weight_version": str(policy.version)}
        return _Protocol(
            _Request("/pause_generation", {"mode": "retract"}),
            _Request("/update_weights_from_disk", load),
            _Request("/continue_generation", {}),
        )
    return _Protocol(None, _Request("/policy", {"version": policy.version, "path": policy.path}), None)


class EngineFleet:
    """`async with EngineFleet(settings) as engines`. See `Engines` of contracts.py."""

    def __init__(self, settings: FleetSettings) -> None:
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        key = os.environ.get(self._settings.api_key_env, "") if self._settings.api_key_env else ""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._session = aiohttp.ClientSession(headers=headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def serve(self, policy: PolicyVersion) -> None:
        protocol = _protocol(self._settings.protocol, policy)
        if self._settings.urls and self._settings.protocol != "rollwright" and not policy.path:
            raise PolicyRefused(f"policy version {policy.version} names no weights to load; publish it with a path")
        bringing = (self._bring(url.rstrip("/"), protocol, policy) for url in self._settings.urls)
        # All are waited for, also when one refuses or this is cancelled: each has an engine to resume.
        for outcome in await asyncio.gather(*bringing, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def gauge(self) -> EngineGauge | None:
        """The sum over all engines that tell; None if none does."""
        told = await asyncio.gather(*(self._look(url.rstrip("/")) for url in self._settings.urls))
        gauges = [gauge for gauge in told if gauge is not None]
        if not gauges:
            return None
        return EngineGauge(
            running=sum(gauge.running for gauge in gauges),
            waiting=sum(gauge.waiting for gauge in gauges),
            cache=max(gauge.cache for gauge in gauges),
        )

    async def _bring(self, url: str, protocol: _Protocol, policy: PolicyVersion) -> None:
        try:
            try:
                async with asyncio.timeout(self._settings.timeout_s):
                    if protocol.pause is not None:
                        await self._post(url, protocol.pause)
                    await self._post(url, protocol.load)
            finally:
                # Also after a pause that was not answered, which the engine may have heard.
                if protocol.resume is not None:
                    async with asyncio.timeout(_RESUME_TIMEOUT_S):
                        await self._post(url, protocol.resume)
        except (TimeoutError, aiohttp.ClientError) as error:
            why = str(error) or type(error).__name__
            raise PolicyRefused(f"{url} did not take policy version {policy.version}: {why}") from error

    async def _post(self, url: str, request: _Request) -> None:
        assert self._session is not None
        for attempt in range(_RETRIES + 1):
            try:
                async with self._session.post(url + request.path, json=request.body) as response:
                    if response.status < 400:
                        await response.read()
                        return
                    text = (await response.text())[:300]
                    if response.status < 500 or attempt == _RETRIES:
                        raise aiohttp.ClientError(f"{request.path} answered {response.status}: {text}")
            except aiohttp.ClientConnectionError:
                if attempt == _RETRIES:
                    raise
            await asyncio.sleep(0.2 * 2**attempt)

    async def _look(self, url: str) -> EngineGauge | None:
        assert self._session is not None
        try:
            async with asyncio.timeout(_GAUGE_TIMEOUT_S), self._session.get(url + "/metrics") as response:
                return read_gauge(await response.text()) if response.status == 200 else None
        except (TimeoutError, aiohttp.ClientError, UnicodeDecodeError):
            return None


def read_gauge(text: str) -> EngineGauge | None:
    """The load in an engine's metrics, in the text format of Prometheus. None if it tells no queue."""
    values: dict[str, list[float]] = {}
    for line in text.splitlines():
        match = re.fullmatch(r"([a-z]+:[a-z_]+)(?:\{[^}]*\})? (\S+)(?: \d+)?", line.strip())
        if match is not None:
            try:
                values.setdefault(match[1], []).append(float(match[2]))
            except ValueError:
                continue
    waiting = _first(values, _WAITING)
    if waiting is None:
        return None
    running, cache = _first(values, _RUNNING) or [0.0], _first(values, _CACHE) or [0.0]
    return EngineGauge(int(sum(running)), int(sum(waiting)), max(cache))


def _first(values: dict[str, list[float]], names: tuple[str, ...]) -> list[float] | None:
    return next((values[name] for name in names if name in values), None)
