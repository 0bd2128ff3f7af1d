"""The small parts: script headers, the factory, shielded cleanup, the census."""

import asyncio
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollwright.runtimes import RUNTIME_KINDS, RuntimeConfig, SubprocessConfig, make_runtime, runtime_config
from rollwright.runtimes.local import shielded
from rollwright.runtimes.local.boxdir import clear
from rollwright.runtimes.local.environment import host_environment
from rollwright.runtimes.provision.pep723 import Needs, admits, needs_of
from rollwright.wire import RuntimeFault, UsageError


@pytest.mark.parametrize(
    ("specifier", "expected"),
    [
        ("", True),
        (">=3.11", True),
        (">=3.11,<4", True),
        (">=3.12", False),
        ("<3.11", False),
        ("==3.11.*", True),
        ("!=3.11.*", False),
        ("==3.11", False),
        ("==3.11.7", True),
        ("~=3.10", True),
        ("~=3.11.0", True),
        ("~=3.10.0", False),
        (">3.11", True),
        ("<=3.11.7", True),
        (">=3.13rc1", False),
        ("nonsense", False),
    ],
)
def test_version_specifiers(specifier, expected):
    assert admits(specifier, (3, 11, 7)) is expected


def test_the_interpreter_is_this_one_where_it_will_do():
    assert Needs().python() == sys.executable
    assert Needs(requires_python=">=3.99").python() == ">=3.99"


@settings(max_examples=40)
@given(st.lists(st.text("abc>=.[]0", min_size=1), max_size=4), st.text("#/ \nabc", max_size=60))
def test_the_key_follows_the_header_and_not_the_body(tmp_path_factory, dependencies, body):
    script = tmp_path_factory.mktemp("s") / "s.py"
    body = body.replace("/", "")
    header = f"# /// script\n# dependencies = {dependencies!r}\n# ///\n"
    script.write_text(header + body)
    assert needs_of(script) == Needs(tuple(dependencies))
    assert needs_of(script).key == Needs(tuple(reversed(dependencies))).key


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("# /// script\n# dependencies = 3\n# ///\n", "list of strings"),
        ("# /// script\n# dependencies = [\n# ///\n", "not TOML"),
        ("# /// script\n# requires-python = 3\n# ///\n", "not a string"),
        ('# /// script\n# [tool.uv]\n# exclude-newer = "2025-01-01"\n# ///\n', "tool.uv"),
        ("# /// script\n# ///\n\n" * 2, "allows one"),
    ],
)
def test_a_bad_header_is_told(tmp_path, text, word):
    script = tmp_path / "s.py"
    script.write_text(text)
    with pytest.raises(RuntimeFault, match=word):
        needs_of(script)


def test_a_script_that_cannot_be_read_is_told(tmp_path):
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "missing.py", tmp_path / "binary.py"):
        with pytest.raises(RuntimeFault, match="cannot be read"):
            needs_of(path)


@given(st.dictionaries(st.sampled_from(["PATH", "LC_ALL", "AWS_SECRET", "PYTHONPATH", "HOME", "X"]), st.text()))
def test_only_listed_variables_pass(host):
    assert set(host_environment(("X",), host)) <= {"PATH", "LC_ALL", "X"}
    assert host_environment((), host)["PATH"]


def test_the_factory_knows_its_kinds():
    config = runtime_config("subprocess", {"memory_mb": 64, "allow_env": ["A"]})
    assert config == SubprocessConfig(memory_mb=64, allow_env=("A",))
    assert make_runtime(config).name.startswith("subprocess-")
    assert list(RUNTIME_KINDS) == ["subprocess", "sandbox", "docker", "prime", "modal"]


@pytest.mark.parametrize(
    ("kind", "options", "told"),
    [
        ("subproces", {}, "did you mean 'subprocess'"),
        ("zzz", {}, "there is .*subprocess"),
        ("subprocess", {"memory": 1}, "did you mean 'memory_mb'"),
        ("subprocess", {"memory_mb": "much"}, "is wrong"),
    ],
)
def test_a_wrong_setting_is_told_with_the_nearest_name(kind, options, told):
    with pytest.raises(UsageError, match=told):
        runtime_config(kind, options)


def test_a_config_of_no_kind_makes_nothing():
    with pytest.raises(UsageError, match="no runtime is made from RuntimeConfig"):
        make_runtime(RuntimeConfig())


async def test_shielded_work_ends_before_the_cancellation_goes_on():
    steps, gate = [], asyncio.Event()

    async def work():
        await gate.wait()
        steps.append("worked")

    async def caller():
        try:
            await shielded(work(), within_s=10)
        finally:
            steps.append("left")

    task = asyncio.create_task(caller())
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["worked", "left"]


async def test_shielded_work_is_bounded():
    with pytest.raises(RuntimeFault, match=r"within 0\.01 s"):
        await shielded(asyncio.Event().wait(), within_s=0.01)


@settings(max_examples=25)
@given(st.recursive(st.sampled_from([b"", b"x"]), lambda inner: st.dictionaries(st.text("ab", min_size=1), inner)))
def test_any_tree_is_cleared(tmp_path_factory, tree):
    top = tmp_path_factory.mktemp("top")
    outside = tmp_path_factory.mktemp("outside")
    (outside / "kept").touch()
    _grow(top, {"tree": tree}, outside)
    clear(str(top))
    assert list(top.iterdir()) == []
    assert (outside / "kept").exists()


def _grow(place, tree, outside):
    for name, inner in tree.items():
        if isinstance(inner, bytes):
            (place / name).write_bytes(inner)
            (place / f"{name}-link").symlink_to(outside)
        else:
            (place / name).mkdir()
            _grow(place / name, inner, outside)
            (place / name).chmod(0)
