"""Images from a Dockerfile: built once for each content, and a Harbor task that needs one is solved in it."""

import asyncio
import os

import pytest
from engine_books import IMAGE

from rollwright.engines.function import FunctionEngine
from rollwright.harnesses import harness_config, make_harness
from rollwright.rollouts import Environment
from rollwright.runtimes.docker import DockerConfig
from rollwright.runtimes.docker import images as building
from rollwright.runtimes.docker.api import Engine, address_of
from rollwright.runtimes.docker.images import built
from rollwright.tasks.builtin.harbor import read_task
from rollwright.wire import RuntimeFault

TEST = """#!/bin/sh
[ "$(cat /app/word.txt)" = mellon ] && [ "$(cat answer.txt)" = mellon ] && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
"""


@pytest.fixture
async def engine(engine_socket):
    engine = Engine(address_of(engine_socket))
    yield engine
    await engine.close()


@pytest.fixture
def context(tmp_path):
    place = tmp_path / "task" / "environment"
    place.mkdir(parents=True)
    (place / "Dockerfile").write_text(f"FROM {IMAGE}\nWORKDIR /app\nCOPY word.txt /app/word.txt\n")
    (place / "word.txt").write_text("mellon\n")
    return place


async def test_one_content_is_built_once_and_another_again(engine, context, monkeypatch):
    builds = []
    monkeypatch.setattr(building, "_build", lambda *args, real=building._build: builds.append(args) or real(*args))
    first = await asyncio.gather(*(built(engine, str(context)) for _ in range(4)))
    assert len(set(first)) == len(builds) == 1
    os.utime(context / "word.txt")
    assert await built(engine, str(context)) == first[0]
    assert len(builds) == 1
    (context / "word.txt").write_text("friend\n")
    assert await built(engine, str(context)) != first[0]
    assert len(builds) == 2
    assert repr(building._builds) == "<Flights 0 flying>"


async def test_a_build_that_fails_says_why(engine, context):
    (context / "Dockerfile").write_text(f"FROM {IMAGE}\nCOPY missing.txt /x\n")
    with pytest.raises(RuntimeFault, match=r"was not built:.*missing\.txt"):
        await built(engine, str(context))
    (context / "Dockerfile").unlink()
    with pytest.raises(RuntimeFault, match="has no Dockerfile"):
        await built(engine, str(context))


@pytest.mark.parametrize(("solution", "reward"), [("cat word.txt > answer.txt", 1.0), ("ls /tests", 0.0)])
async def test_a_harbor_task_is_solved_in_its_own_image(engine_socket, context, solution, reward):
    task = context.parent
    for path, text in {
        "task.toml": "",
        "instruction.md": "Copy.",
        "tests/test.sh": TEST,
        "solution/solve.sh": solution,
    }.items():
        (task / path).parent.mkdir(exist_ok=True)
        (task / path).write_text(text)
    runtime = DockerConfig(socket=engine_socket, memory_mb=256)
    environment = Environment([], harness=make_harness(harness_config("oracle")), runtime=runtime)
    async with environment.serving(FunctionEngine(lambda call: "unused"), "m") as serving:
        trace = await serving.run(read_task(task))
    assert (trace.failure, trace.reward) == (None, reward)
