"""Policy versions: from a trainer to the file, from the file to the loop, from the loop to the engines."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager

import pytest
from aiohttp import web

from rollwright.engines.scripted.config import ScriptedConfig
from rollwright.engines.scripted.server import ScriptedServer
from rollwright.orchestrator.concurrency import Concurrency, ConcurrencySettings, EngineGauge
from rollwright.orchestrator.contracts import PolicyVersion
from rollwright.orchestrator.fleet import EngineFleet, FleetSettings, PolicyRefused, read_gauge
from rollwright.orchestrator.policies import PolicyWatch, read_policy, write_policy
from rollwright.orchestrator.transports import BatchReceiver
from rollwright.orchestrator.transports.zmq import ZmqSender
from rollwright.wire import UsageError, WireError


def test_the_newest_version_wins_whoever_comes_last(tmp_path):
    assert read_policy(tmp_path) is None
    for version in (3, 1, 7, 7, 2):
        write_policy(tmp_path, PolicyVersion(version, f"w{version}"))
    assert read_policy(tmp_path) == PolicyVersion(7, "w7")


@pytest.mark.parametrize("text", ["", "{", '{"version": "x"}', '{"version": -1}', "[]"])
def test_a_file_that_tells_no_version_is_named(tmp_path, text):
    (tmp_path / "policy.json").write_text(text)
    with pytest.raises(WireError, match=r"policy\.json"):
        read_policy(tmp_path)


async def test_a_watcher_sees_each_newest_version_once(tmp_path):
    seen = []
    async with aclosing(PolicyWatch(tmp_path, poll_s=0.001).versions()) as versions:
        write_policy(tmp_path, PolicyVersion(2))
        async for policy in versions:
            seen.append(policy.version)
            if policy.version == 5:
                break
            write_policy(tmp_path, PolicyVersion(3))
            write_policy(tmp_path, PolicyVersion(5))
    assert seen == [2, 5]


def test_a_trainer_publishes_through_a_directory(tmp_path):
    receiver = BatchReceiver(tmp_path)
    receiver.publish(4, "weights")
    assert read_policy(tmp_path) == PolicyVersion(4, "weights")
    with pytest.raises(UsageError, match="count from 0"):
        receiver.publish(-1)


async def test_a_trainer_publishes_over_a_socket(tmp_path):
    sender = ZmqSender(tmp_path, sync=False)
    with BatchReceiver(sender.address, key=sender.key) as receiver:
        await asyncio.to_thread(receiver.publish, 4, "weights")
        assert read_policy(tmp_path) == PolicyVersion(4, "weights")
        await asyncio.to_thread(receiver.publish, 2, "old")
        assert read_policy(tmp_path) == PolicyVersion(4, "weights")
    await sender.close()


class Peer:
    """An engine of another make: it remembers what it was asked, and fails where it is told to."""

    def __init__(self, failing: str = "", status: int = 500) -> None:
        self.asked: list[tuple[str, object]] = []
        self._failing, self._status = failing, status
        self.slow_at = ""
        self.slow = asyncio.Event()
        """Set when it is asked for what takes it long."""
        self.go_on = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        self.asked.append((request.path_qs, body))
        if request.path == self.slow_at:
            self.slow.set()
            await self.go_on.wait()
        if request.path == self._failing:
            return web.Response(status=self._status, text="out of memory")
        return web.json_response({})

    @asynccontextmanager
    async def serving(self):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


def fleet_of(one: str, two: str, protocol) -> EngineFleet:
    return EngineFleet(FleetSettings(urls=(one, two), protocol=protocol))


EXPECTED = {
    "vllm": [
        ("/pause?mode=keep", {}),
        ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": "/w/3"}}),
        ("/resume", {}),
    ],
    "sglang": [
        ("/pause_generation", {"mode": "retract"}),
        ("/update_weights_from_disk", {"model_path": "/w/3", "weight_version": "3"}),
        ("/continue_generation", {}),
    ],
    "rollwright": [("/policy", {"version": 3, "path": "/w/3"})],
}


@pytest.mark.parametrize("protocol", EXPECTED)
async def test_every_engine_is_brought_to_the_version_in_its_own_words(protocol):
    peers = [Peer(), Peer()]
    async with peers[0].serving() as one, peers[1].serving() as two, fleet_of(one, two + "/", protocol) as fleet:
        await fleet.serve(PolicyVersion(3, "/w/3"))
    assert [peer.asked for peer in peers] == [EXPECTED[protocol]] * 2


async def test_an_engine_that_refuses_is_named_and_not_left_paused():
    peer = Peer("/collective_rpc", 400)
    async with peer.serving() as url, EngineFleet(FleetSettings(urls=(url,), protocol="vllm")) as fleet:
        with pytest.raises(PolicyRefused, match=r"version 3.*400: out of memory"):
            await fleet.serve(PolicyVersion(3, "/w/3"))
        with pytest.raises(PolicyRefused, match="names no weights"):
            await fleet.serve(PolicyVersion(3))
    assert [path for path, _ in peer.asked] == ["/pause?mode=keep", "/collective_rpc", "/resume"]


async def test_a_refusal_waits_until_every_other_engine_is_resumed():
    refusing, slow = Peer("/collective_rpc", 400), Peer()
    slow.slow_at = "/collective_rpc"
    async with refusing.serving() as one, slow.serving() as two, fleet_of(one, two, "vllm") as fleet:
        serving = asyncio.create_task(fleet.serve(PolicyVersion(3, "/w/3")))
        await asyncio.wait_for(slow.slow.wait(), 30)
        while len(refusing.asked) < 3:
            await asyncio.sleep(0)
        slow.go_on.set()
        with pytest.raises(PolicyRefused, match="400: out of memory"):
            await serving
        assert [path for path, _ in slow.asked] == ["/pause?mode=keep", "/collective_rpc", "/resume"]


@pytest.mark.parametrize("at", ["/pause", "/collective_rpc"])
async def test_a_cancelled_update_resumes_the_engine(at):
    """Also one whose pause was asked for and not answered: it may have heard it."""
    peer = Peer()
    peer.slow_at = at
    async with peer.serving() as url, EngineFleet(FleetSettings(urls=(url,), protocol="vllm")) as fleet:
        serving = asyncio.create_task(fleet.serve(PolicyVersion(3, "/w/3")))
        await asyncio.wait_for(peer.slow.wait(), 30)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert peer.asked[-1][0] == "/resume"
        peer.go_on.set()


async def test_an_engine_that_is_away_ends_in_time():
    async with EngineFleet(FleetSettings(urls=("http://127.0.0.1:9",), timeout_s=0.3)) as fleet:
        with pytest.raises(PolicyRefused, match=r"127\.0\.0\.1:9 did not take policy version 1"):
            await fleet.serve(PolicyVersion(1))
        assert await fleet.gauge() is None


async def test_the_scripted_engine_takes_versions_and_tells_its_load():
    async with ScriptedServer(ScriptedConfig(policy="echo")) as server:
        async with EngineFleet(FleetSettings(urls=(server.base_url,))) as fleet:
            await fleet.serve(PolicyVersion(6))
            assert await fleet.gauge() == EngineGauge(0, 0, 0.0)
        assert server._player.policy_version == 6


def test_metrics_of_other_engines_are_read():
    vllm = (
        "# HELP vllm:num_requests_waiting of the scheduler\n"
        'vllm:num_requests_running{model_name="m",engine="0"} 12.0\n'
        'vllm:num_requests_waiting{model_name="m",engine="0"} 3.0\n'
        'vllm:num_requests_waiting{model_name="m",engine="1"} 4.0\n'
        'vllm:kv_cache_usage_perc{model_name="m",engine="0"} 0.9\n'
    )
    assert read_gauge(vllm) == EngineGauge(12, 7, 0.9)
    assert read_gauge("sglang:num_queue_reqs 2\nsglang:token_usage 0.5 1700000000\nnoise\n") == EngineGauge(0, 2, 0.5)
    assert read_gauge("python_gc_objects 3\n") is None


def test_settings_of_a_fleet_that_cannot_work():
    with pytest.raises(UsageError, match="no address"):
        FleetSettings(urls=("localhost:8000",))
    with pytest.raises(UsageError, match="timeout_s"):
        FleetSettings(timeout_s=float("nan"))


# Concurrency


def settled(**changes) -> Concurrency:
    return Concurrency(ConcurrencySettings(**{"initial": 100, "least": 10, "most": 200, "settle_s": 1.0, **changes}))


def test_a_queue_at_the_engine_lowers_the_limit_and_its_absence_raises_it():
    limit = settled()
    for second in range(40):
        limit.gauge(EngineGauge(waiting=50), in_flight=limit.limit, now=second * 1.0)
    assert limit.limit == 10
    for second in range(40, 140):
        limit.gauge(EngineGauge(), in_flight=limit.limit, now=second * 1.0)
    assert limit.limit == 200


def test_a_full_cache_lowers_the_limit():
    limit = settled()
    limit.gauge(EngineGauge(cache=0.99), in_flight=100, now=0.0)
    assert limit.limit == 80


def test_a_limit_that_nobody_leans_on_is_not_raised_and_changes_have_time_to_show():
    limit = settled()
    limit.gauge(EngineGauge(), in_flight=10, now=0.0)
    assert limit.limit == 100
    for tick in range(9):
        limit.gauge(EngineGauge(), in_flight=limit.limit, now=5.0 + tick / 10)
    assert limit.limit == 110


def test_without_a_gauge_the_pace_decides():
    """An engine with 40 places: every call beyond them waits."""
    limit, now = settled(initial=20), 0.0
    seen = []
    for _ in range(400):
        now += 0.5
        limit.took(max(limit.limit, 40) / 40, in_flight=limit.limit, now=now)
        seen.append(limit.limit)
    assert min(seen[200:]) >= 30
    assert max(seen[200:]) <= 120


def test_a_fixed_limit_stays():
    limit = settled(adaptive=False)
    limit.gauge(EngineGauge(waiting=50), in_flight=100, now=9.0)
    limit.took(99.0, 100, 20.0)
    assert limit.limit == 100
