"""Harbor directories: the solution gives one, nothing gives zero, and what is no reward is no zero."""

import asyncio
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.engines.function import FunctionEngine
from rollwright.harnesses import harness_config, make_harness
from rollwright.rollouts import Environment
from rollwright.runtimes import Ending, ExecResult, runtime_config
from rollwright.tasks import Task, load_tasks, make_taskset
from rollwright.tasks.builtin.harborbox import read_reward
from rollwright.wire import Layer, Stop, TaskBroken, UsageError

EXAMPLES = Path(__file__).parents[2] / "examples" / "harbor"
HARBOR = "rollwright.tasks.builtin.harbor:Harbor"
DONE = ExecResult(Ending.EXITED, 0, b"", b"last words")

pytestmark = pytest.mark.skipif(shutil.which("tar") is None, reason="there is no tar here to bring files into a box")


@pytest.fixture(params=["subprocess", "sandbox"])
def box(request):
    if request.param == "sandbox" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    return runtime_config(request.param, {})


def read(path, **options):
    return load_tasks(make_taskset(HARBOR, {"path": str(path), **options}))


async def rolled(task, kind="oracle", box=None, answer="I give up."):
    environment = Environment([], harness=make_harness(harness_config(kind)), runtime=box)
    async with environment.serving(FunctionEngine(lambda call: answer), "m") as serving:
        return await serving.run(task)


def copied(tmp_path, name="largest-number", **files):
    """A task of ours with some files changed; None takes one away."""
    place = tmp_path / name
    shutil.copytree(EXAMPLES / name, place)
    for path, text in files.items():
        target = place / path.replace("__", "/").replace("_", ".")
        target.unlink() if text is None else target.write_text(text)
    return place


@pytest.mark.parametrize("number", [0, 1])
async def test_the_solution_gives_one_and_doing_nothing_gives_less(box, number):
    task = read(EXAMPLES)[number]
    solved = await rolled(task, box=box)
    assert (solved.failure, solved.reward) == (None, 1.0)
    idle = await rolled(task, "bash", box=box)
    assert (idle.failure, idle.reward) == (None, [0.0, 0.5][number])
    assert idle.reply == "I give up."


def test_directories_are_found_by_name():
    assert [task.id for task in read(EXAMPLES)] == ["largest-number", "tidy-names"]
    assert [task.id for task in read(EXAMPLES, only=["tidy-names"])] == ["tidy-names"]
    (task,) = read(EXAMPLES / "tidy-names")
    assert task.prompt.startswith("Rename every file")
    assert task.limit_settings() == {"score_timeout_s": 120.0, "timeout_s": 300.0}
    assert task.runtime_settings() == {}
    with pytest.raises(UsageError, match="has no task tidy"):
        read(EXAMPLES, only=["tidy"])
    with pytest.raises(UsageError, match="there is no directory"):
        read("/nowhere")


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"task_toml": "[verifier"}, "cannot be read"),
        ({"task_toml": '[verifier]\ntimeout_sec = "soon"'}, "cannot be read"),
        ({"instruction_md": None}, "cannot be read"),
        ({"tests__test_sh": None}, "has no tests/test.sh"),
        (
            {"tests__test_sh": "echo 1 > /logs/verifier/reward.txt"},
            "has no image, and its tests/test.sh writes to fixed",
        ),
        ({"environment__docker-compose_yaml": "services: {}"}, "needs several containers"),
        ({"task_toml": '[verifier]\nenv = {KEY = "${KEY}"}'}, "wants variables of this host"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_run_is_said_before_the_run(tmp_path, files, told):
    with pytest.raises(UsageError, match=told):
        read(copied(tmp_path, **files))


def test_an_image_is_asked_for_by_name_or_by_directory(tmp_path):
    place = copied(tmp_path, environment__Dockerfile="FROM x\nWORKDIR /first\nworkdir /srv/work\n")
    (task,) = read(place)
    assert task.runtime_settings() == {"kind": "docker", "build": str(place / "environment"), "workdir": "/srv/work"}
    (place / "task.toml").write_text('[environment]\ndocker_image = "a/b:c"\ncpus = 2\nmemory_mb = 512\nworkdir = "/w"')
    (task,) = read(place)
    named = {"kind": "docker", "image": "a/b:c", "cpus": 2.0, "memory_mb": 512, "workdir": "/w"}
    assert task.runtime_settings() == named


async def test_a_planted_reward_is_taken_away_and_tests_are_not_there_before(tmp_path):
    plant = 'mkdir -p "$VERIFIER_DIR" && echo 1 > "$VERIFIER_DIR/reward.txt"; ls "$TESTS_DIR" > seen.txt 2>&1; true'
    check = 'ls "$VERIFIER_DIR" > left.txt; [ -s left.txt ] || echo 0.25 > "$VERIFIER_DIR/reward.txt"'
    (task,) = read(copied(tmp_path, solution__solve_sh=plant, tests__test_sh=check))
    trace = await rolled(task)
    assert (trace.failure, trace.reward) == (None, 0.25)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("true # $VERIFIER_DIR", "the tests wrote no reward; they ended with 0"),
        ("echo oh no >&2; exit 3 # $VERIFIER_DIR", "they ended with 3: oh no"),
        ('echo fine > "$VERIFIER_DIR/reward.txt"', "the reward 'fine'"),
        ('mkdir "$VERIFIER_DIR/reward.txt"', "the tests wrote no reward"),
    ],
)
async def test_what_is_no_reward_is_a_broken_task(tmp_path, script, told):
    (task,) = read(copied(tmp_path, tests__test_sh=f"#!/bin/sh\n{script}\n"))
    trace = await rolled(task)
    assert trace.failure.layer is Layer.TASK
    assert told in trace.failure.message


async def test_tests_that_do_not_end_are_ended(tmp_path):
    (task,) = read(
        copied(tmp_path, task_toml="[verifier]\ntimeout_sec = 0.2", tests__test_sh="sleep 600 # VERIFIER_DIR")
    )
    trace = await rolled(task)
    assert "did not end within 0.2 s" in trace.failure.message


class Said:
    """A box whose reward files say something."""

    name = "box"

    def __init__(self, text=b"", json=b""):
        self.stdout = b"txt\n" + text + b"\njson\n" + json + b"\n"

    async def run(self, argv, **options):
        return ExecResult(Ending.EXITED, 0, self.stdout, b"")


@given(value=st.floats(-1e9, 1e9), form=st.sampled_from(["text", "json", "one", "both"]))
async def test_a_number_is_read_as_it_was_written(value, form):
    text, json = repr(value).encode(), b'{"other": true, "reward": %a}' % value
    said = {"text": (text, b""), "json": (b"", json), "one": (b"", b'{"a": %a}' % value), "both": (text, json)}[form]
    assert await read_reward(Said(*said), "d", DONE) == value


@pytest.mark.parametrize(
    ("text", "json"),
    [
        (b"nan", b""),
        (b"inf", b""),
        (b"1_0", b""),
        (b"true", b""),
        (b"1 2", b""),
        (b"", b"[1]"),
        (b"", b"{}"),
        (b"", b'{"a": 1, "b": 2}'),
        (b"", b'{"reward": true}'),
        (b"", b'{"reward": null}'),
        (b"", b'{"reward": 1'),
        (b"1", b'{"reward": 0}'),
        (b"", b""),
    ],
)
async def test_what_is_not_one_number_is_told(text, json):
    with pytest.raises(TaskBroken):
        await read_reward(Said(text, json), "d", DONE)


@given(text=st.binary(max_size=30), json=st.binary(max_size=30))
async def test_any_bytes_are_a_number_or_a_broken_task(text, json):
    outcome = await asyncio.gather(read_reward(Said(text, json), "d", DONE), return_exceptions=True)
    assert isinstance(outcome[0], float | TaskBroken)


async def test_a_task_without_solution_says_so():
    trace = await rolled(Task(id="plain"))
    assert trace.failure.layer is Layer.HARNESS
    assert "knows no solution of its own" in trace.failure.message


async def test_limits_of_a_task_hold_for_its_rollouts_and_bad_ones_fail_it():
    class Limited(Task, frozen=True):
        limits: dict

        def limit_settings(self):
            return self.limits

    trace = await rolled(Limited(id="a", prompt="Go.", limits={"max_turns": 0}), "chat")
    assert (trace.stop, trace.turns) == (Stop.TURNS_SPENT, 0)
    for wrong in ({"turns": 1}, {"timeout_s": "soon"}, None):
        trace = await rolled(Limited(id="b", limits=wrong), "chat")
        assert trace.failure.layer is Layer.TASK
        assert "the limits of 'b' make no sense" in trace.failure.message
