"""Settings, addresses, keys and the factory: what a person types and what comes of it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pytest

from ears import events_from
from rollwright.dialects import DIALECTS, dialect_named
from rollwright.engines import EngineConfig, RelayConfig, open_engine
from rollwright.engines.endpoint import base_url, find_endpoint, find_proxy, is_loopback
from rollwright.engines.scripted import ScriptedConfig
from rollwright.wire import EngineUnavailable, ModelCall, UsageError, reply_of, user

CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("http://localhost:8000", "http://localhost:8000/v1"),
        ("http://localhost:8000/", "http://localhost:8000/v1"),
        ("http://localhost:8000/v1", "http://localhost:8000/v1"),
        ("http://localhost:8000/v1/", "http://localhost:8000/v1"),
        ("https://openrouter.ai/api/v1", "https://openrouter.ai/api/v1"),
        ("https://host/v1beta/openai/", "https://host/v1beta/openai"),
        ("https://host/v1/chat/completions", "https://host/v1"),
        ("https://host/v1/messages?beta=true#x", "https://host/v1"),
        ("http://[::1]:9", "http://[::1]:9/v1"),
    ],
)
def test_an_address_is_understood(typed: str, meant: str) -> None:
    assert str(base_url(typed)) == meant


@pytest.mark.parametrize("typed", ["localhost:8000", "ftp://x", "http://", "http://h:99999", "https://me:pw@host"])
def test_a_wrong_address_gets_one_sentence(typed: str) -> None:
    with pytest.raises(UsageError) as caught:
        base_url(typed)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_each_dialect_has_its_path_and_its_key(name: str) -> None:
    config = RelayConfig(base_url="http://h", dialect=name)  # type: ignore[arg-type]
    endpoint = find_endpoint(config, dialect_named(name), {config.key_variable: "sk-1"})
    assert endpoint.url.path == dialect_named(name).path
    assert any("sk-1" in value for value in endpoint.headers.values())
    assert config.key_variable == ("ANTHROPIC_API_KEY" if name == "messages" else "OPENAI_API_KEY")
    assert find_endpoint(config, dialect_named(name), {}).has_key is False


def test_a_key_with_a_newline_is_refused_without_showing_it() -> None:
    with pytest.raises(UsageError, match="OPENAI_API_KEY") as caught:
        find_endpoint(RelayConfig(), dialect_named("chat"), {"OPENAI_API_KEY": "sk-1\nX-Evil: 1"})
    assert "sk-1" not in str(caught.value)


def test_the_proxy_of_the_environment_is_for_other_machines(monkeypatch) -> None:
    monkeypatch.setenv("https_proxy", "http://me:pw@proxy:3128")
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "inside.example")
    proxy, headers = find_proxy(base_url("https://api.example"))
    assert str(proxy) == "http://proxy:3128"
    assert headers == {"Proxy-Authorization": "Basic bWU6cHc="}
    assert find_proxy(base_url("http://127.0.0.1:1")) == (None, None)
    assert find_proxy(base_url("https://inside.example")) == (None, None)


def test_loopback() -> None:
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "127.8.8.8", "::1", "a.localhost"]))
    assert not any(map(is_loopback, ["10.0.0.1", "localhost.example.com", ""]))


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_connections", 0), ("timeout_s", -1), ("deadline_s", float("nan")), ("requests_per_minute", 0)],
)
def test_an_amount_that_makes_no_sense_is_named(field: str, value: float) -> None:
    with pytest.raises(UsageError, match=rf"engine\.relay\.{field} must be more than 0"):
        RelayConfig(**{field: value})  # type: ignore[arg-type]


def test_unknown_keys_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="max_retry"):
        msgspec.convert({"kind": "relay", "relay": {"max_retry": 3}}, EngineConfig)


def test_settings_survive_a_round_trip() -> None:
    config = EngineConfig(kind="relay", relay=RelayConfig(base_url="http://h", max_concurrency=4))
    assert msgspec.json.decode(msgspec.json.encode(config), type=EngineConfig) == config


@pytest.mark.parametrize(
    ("kind", "said"), [("locl", "did you mean 'local'"), ("zzz", "there is local, relay, scripted")]
)
async def test_an_unknown_kind_names_the_nearest(kind: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        async with open_engine(EngineConfig(kind=kind)):  # type: ignore[arg-type]
            raise AssertionError("it opened")


async def test_the_factory_opens_a_relay_without_asking_anybody() -> None:
    config = EngineConfig(kind="relay", relay=RelayConfig(base_url="http://127.0.0.1:9", api_key_env="NO_SUCH_KEY"))
    async with open_engine(config, "m") as engine:
        assert repr(engine) == "<RelayEngine http://127.0.0.1:9/v1 chat: 0 in flight, 0 waiting, limit 512>"


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
async def test_the_scripted_engine_is_spoken_to_in_every_dialect(dialect: str) -> None:
    config = EngineConfig(scripted=ScriptedConfig(policy="echo"), relay=RelayConfig(dialect=dialect))  # type: ignore[arg-type]
    call = ModelCall("", (user("say this"),))
    async with open_engine(config) as engine:
        await engine.probe()
        whole = await engine.complete(call)
        streamed = reply_of(await events_from(engine, call))
    assert "say this" in whole.message.text
    assert (streamed.message, streamed.finish, streamed.usage) == (whole.message, whole.finish, whole.usage)


@pytest.mark.skipif(not CHILDREN.exists(), reason="finding the child needs /proc/PID/task/TID/children")
async def test_a_scripted_engine_that_died_is_told() -> None:
    async with open_engine(EngineConfig(scripted=ScriptedConfig(policy="echo"))) as engine:
        await engine.probe()
        os.kill(_children()[-1], signal.SIGKILL)
        with pytest.raises(EngineUnavailable, match="the scripted engine died"):
            await asyncio.wait_for(engine.complete(ModelCall("", (user("x"),))), 20)


def _children() -> list[int]:
    """Processes that this one started, oldest first."""
    return [int(pid) for pid in CHILDREN.read_text().split()]
