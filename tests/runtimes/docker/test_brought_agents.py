"""Agents in a container that has nothing of them: they are brought there once, and solve their task."""

import pytest

from e2e.test_agents import check_solved
from harnesses.playing import PROMPT, Answer, Nothing, play
from rollwright.engines.function import FunctionEngine
from rollwright.harnesses import harness_config, make_harness
from rollwright.harnesses.bringing import brought, packed
from rollwright.harnesses.install import PARTS
from rollwright.harnesses.shells import bash_in
from rollwright.rollouts import Environment
from rollwright.runtimes import runtime_config
from rollwright.runtimes.provision import NpmProgram, host_platform
from rollwright.runtimes.provision.building import mark_ready
from rollwright.wire import RuntimeFault
from runtimes.docker.engine_books import IMAGE


def choose(platform):
    return NpmProgram(f"@some/agent-{platform}", "1.2.3", "vendor/*/agent")


@pytest.fixture
def fetched(make):
    """A package that was fetched: a program, what it needs beside it, and some megabytes."""
    program = choose(host_platform())
    folder = program.package_dir / "vendor" / "here"
    folder.mkdir(parents=True)
    (folder / "agent").write_text('#!/bin/sh\ncat "$(dirname "$0")/words" && cat\n')
    (folder / "agent").chmod(0o755)
    (folder / "words").write_text("from beside ")
    (folder / "much").write_bytes(bytes(range(256)) * 4 * 10_000)
    mark_ready(program.place)
    return program


@pytest.mark.parametrize(
    "settings", [{}, {"user": "1000:1000"}, {"read_only": True}], ids=["root", "user", "read-only"]
)
async def test_a_program_is_brought_with_all_that_lies_beside_it(make, fetched, settings):
    async with make(**settings) as box:
        path = await brought(box, choose)
        ran = await box.run([path], stdin=b"and from us")
        assert (ran.exit_code, ran.text) == (0, "from beside and from us")
        await box.run(["rm", f"{path.rpartition('/')[0]}/words"])
        assert await brought(box, choose) == path
        assert not (await box.run([path])).ok, "a box that has it is not given it again"


async def test_a_box_that_was_left_in_the_middle_of_it_is_given_it_anew(make, fetched):
    async with make() as box:
        path = await brought(box, choose)
        place = path.removesuffix("/vendor/here/agent")
        await box.run(["sh", "-c", f"rm {place}/.ready && echo half > {path}"])
        assert await brought(box, choose) == path
        assert (await box.run([path])).text == "from beside "


async def test_an_archive_that_does_not_unpack_is_told(make, fetched):
    archive = await packed(fetched)
    archive.write_bytes(archive.read_bytes()[:1000])
    async with make() as box:
        with pytest.raises(RuntimeFault, match=r"could not unpack some-agent-.*-1\.2\.3\.tar\.gz"):
            await brought(box, choose)


@pytest.mark.parametrize(
    "settings", [{}, {"user": "1000:1000"}, {"read_only": True}], ids=["root", "user", "read-only"]
)
async def test_a_box_without_bash_is_given_one(make, settings):
    async with make(**settings) as box:
        assert not (await box.run(["sh", "-c", "command -v bash"])).ok
        found = await bash_in(box)
        ran = await box.run(["bash", "-c", 'a=(1 2); [[ $BASH == "$SHELL" ]] && echo ${a[1]}'], env=found)
        assert (ran.text, ran.exit_code) == ("2\n", 0)
        await box.run(["rm", found["SHELL"]])
        assert await bash_in(box) == found
        assert not (await box.run(["test", "-e", found["SHELL"]])).ok, "a box that has it is not given it again"


async def test_our_own_agent_has_its_bash_in_any_image(engine_socket):
    runtime = runtime_config("docker", {"image": IMAGE, "socket": engine_socket})
    environment = Environment(Nothing(), harness=make_harness(harness_config("bash")), runtime=runtime)
    async with environment.serving(FunctionEngine(play), "scripted") as serving:
        trace = await serving.run(Answer(id="answer", prompt=PROMPT))
    assert (trace.failure, trace.reward) == (None, 1.0)


@pytest.mark.soak
@pytest.mark.parametrize("agent", ["codex", "claude-code", "opencode"])
async def test_a_published_agent_solves_its_task_in_a_container(agent, engine_socket):
    """In an image that has a C library and a shell, and neither Node.js nor bash."""
    if PARTS[agent].find() is None:
        pytest.skip(f"{agent} is not on this host; fetch it with: python -m rollwright.harnesses.install {agent}")
    runtime = runtime_config("docker", {"image": IMAGE, "socket": engine_socket})
    environment = Environment(Nothing(), harness=make_harness(harness_config(agent)), runtime=runtime)
    async with environment.serving(FunctionEngine(play), "scripted") as serving:
        trace = await serving.run(Answer(id="answer", prompt=PROMPT))
    check_solved(agent, trace)
