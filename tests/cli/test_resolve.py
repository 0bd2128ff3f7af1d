"""Defaults, files and flags become one frozen object; the later wins, and what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from rollwright.cli.batching import OrchestrateCommand
from rollwright.cli.fields import settings_of
from rollwright.cli.resolve import Resolved, resolve
from rollwright.cli.serve import ServeSettings
from rollwright.cli.served import environment_spec
from rollwright.cli.settings import EvalSettings, config_of
from rollwright.engines.scripted.config import Fault
from rollwright.orchestrator.settings import OrchestrateSettings
from rollwright.tasks import GroupSettings
from rollwright.traces.toml import write_toml
from rollwright.wire import UsageError


def resolved(*argv: str) -> Resolved[EvalSettings]:
    found = resolve(EvalSettings, argv)
    assert found is not None
    return found


def test_defaults_need_only_a_taskset(place: Path) -> None:
    found = resolved("sums.py")
    assert found.taskset_name == "sums.py"
    assert (found.settings.tasks, found.settings.rollouts, found.settings.concurrency) == (20, 1, 32)
    assert (found.settings.engine.kind, found.settings.model) == ("scripted", "scripted")


def test_short_flags_and_dotted_ones(place: Path) -> None:
    argv = "sums.py -m big -n all -r 4 -c 8 -o out --taskset.count 7 --limits.max-turns none --sampling.stop a b"
    settings = resolved(*argv.split(), "--engine.scripted.faults", "rate_limit", "0.25").settings
    assert (settings.model, settings.tasks, settings.rollouts, settings.concurrency) == ("big", "all", 4, 8)
    assert settings.taskset.count == 7  # type: ignore[attr-defined]
    assert settings.limits.max_turns is None
    assert settings.sampling.stop == ("a", "b")
    assert settings.engine.scripted.faults == {Fault.RATE_LIMIT: 0.25}


@pytest.mark.parametrize(
    "words",
    [
        ["--runtime.persistent", "true"],
        ["--runtime.persistent", "True"],
        ["--runtime.persistent=true"],
        ["--runtime.persistent"],
        ["--runtime.persistent", "false", "--runtime.persistent", "true"],
        ["--runtime.persistent", "--json"],
    ],
)
def test_a_switch_is_spelled_out_or_stands_alone(place: Path, words: list[str]) -> None:
    assert resolved("sums.py", *words).settings.runtime.persistent is True
    assert resolved(*words, "sums.py").settings.runtime.persistent is True


def test_underscores_and_dashes_are_the_same(place: Path) -> None:
    for flag in ("--runtime.memory_mb", "--runtime.memory-mb"):
        assert resolved("sums.py", flag, "64").settings.runtime.memory_mb == 64


def test_a_value_may_begin_with_a_dash(place: Path) -> None:
    settings = resolved("sums.py", "--sampling.temperature", "-1", "--model=-odd").settings
    assert (settings.sampling.temperature, settings.model) == (-1.0, "-odd")


def test_files_in_order_then_flags(place: Path) -> None:
    Path("a.toml").write_text('rollouts = 2\nconcurrency = 5\n[taskset]\nname = "sums.py"\ncount = 9\n')
    Path("b.toml").write_text("concurrency = 6\n[limits]\nmax_turns = 'none'\n")
    found = resolved("--rollouts", "3", "@", "a.toml", "@b.toml")
    settings = found.settings
    assert (found.taskset_name, settings.rollouts, settings.concurrency) == ("sums.py", 3, 6)
    assert settings.taskset.count == 9  # type: ignore[attr-defined]
    assert settings.limits.max_turns is None
    assert resolved("@b.toml", "@a.toml").settings.concurrency == 5


def test_an_address_means_the_relay_engine(place: Path) -> None:
    settings = resolved("sums.py", "--base-url", "http://x/v1", "-m", "big").settings
    assert (settings.engine.kind, settings.engine.relay.base_url) == ("relay", "http://x/v1")
    Path("a.toml").write_text('model = "big"\n[engine.relay]\nbase_url = "http://x/v1"\n')
    assert resolved("sums.py", "@a.toml").settings.engine == settings.engine
    assert resolved("sums.py", "@a.toml", "--engine", "scripted").settings.engine.kind == "scripted"


def test_the_seed_reaches_the_scripted_engine_unless_it_has_its_own(place: Path) -> None:
    assert resolved("sums.py", "--seed", "5").settings.engine.scripted.seed == 5
    assert resolved("sums.py", "--seed", "5", "--engine.scripted.seed", "7").settings.engine.scripted.seed == 7


def test_the_oracle_is_told_which_taskset_it_solves(place: Path) -> None:
    scripted = resolved("sums.py", "--taskset.count", "3").engine_config().scripted
    assert scripted.solver == "rollwright.tasks.oracle:solver"
    assert scripted.solver_options["taskset"] == "sums.py"
    assert scripted.solver_options["options"]["count"] == 3
    own = resolved("sums.py", "--engine.scripted.solver", "mine:solver").engine_config().scripted
    assert (own.solver, own.solver_options) == ("mine:solver", {})


choices = st.fixed_dictionaries(
    {},
    optional={
        "rollouts": st.integers(1, 99),
        "tasks": st.integers(1, 99) | st.just("all"),
        "shuffle": st.booleans(),
        "pass_threshold": st.floats(allow_nan=False, allow_infinity=False),
        "model": st.text(min_size=1).filter(lambda text: "\x00" not in text),
        "taskset.names": st.lists(st.text(max_size=5)),
        "limits.max_turns": st.none() | st.integers(1, 99),
        "limits.max_total_tokens": st.none() | st.integers(1, 99),
        "sampling.temperature": st.none() | st.floats(0, 2),
        "sampling.stop": st.lists(st.text(max_size=5)),
        "runtime.persistent": st.booleans(),
        "engine.scripted.faults": st.dictionaries(st.sampled_from(["stall", "cut_stream"]), st.floats(0, 0.5)),
    },
)


@hypothesis_settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(choices)
def test_config_toml_gives_the_same_settings_again(place: Path, chosen: dict[str, object]) -> None:
    """What a run writes down is a settings file that begins the same run."""
    from rollwright.cli.files import nested

    # TOML has no null; leaving a key out would mean its default.
    spoken = {key: "none" if value is None else value for key, value in chosen.items()}
    Path("in.toml").write_text(write_toml(nested(spoken)), encoding="utf-8")
    first = resolved("sums.py", "@in.toml")
    config = config_of(first.settings, first.taskset_name)
    Path("out.toml").write_text(write_toml(config), encoding="utf-8")
    again = resolved("@out.toml")
    assert msgspec.to_builtins(again.settings) == msgspec.to_builtins(first.settings)
    assert config_of(again.settings, again.taskset_name) == config


@pytest.mark.parametrize(("verb", "kind"), [("eval", EvalSettings), ("orchestrate", OrchestrateCommand)])
def test_help_documents_every_setting(place: Path, capsys: pytest.CaptureFixture[str], verb: str, kind: type) -> None:
    assert resolve(kind, ["sums.py", "--help"]) is None
    page = capsys.readouterr().out
    words = page.split()
    for setting in settings_of(kind).values():
        if not setting.tag and setting.kind != "file only":
            assert setting.flag in words, setting.key
    assert "--taskset.count" in words
    assert "How many sums." in page
    assert "-m" in words


def test_orchestrate_offers_what_the_orchestrator_has() -> None:
    ours = {field.name: field.default for field in msgspec.structs.fields(OrchestrateCommand)}
    # These two have other names or shapes on a command line.
    for field in (f for f in msgspec.structs.fields(OrchestrateSettings) if f.name not in ("pack", "concurrency")):
        assert field.name in ours
        assert field.required or ours[field.name] == field.default


def test_a_taskset_that_needs_a_setting_says_so(place: Path) -> None:
    code = Path("sums.py").read_text().replace("count: int = 30", "count: int")
    Path("needy.py").write_text(code)
    with pytest.raises(UsageError, match=r"needs a setting: --taskset.count with a whole number"):
        resolved("needy.py")
    assert resolved("needy.py", "--taskset.count", "4").settings.taskset.count == 4  # type: ignore[attr-defined]


def test_the_kind_of_box_brings_its_own_settings(place: Path) -> None:
    from rollwright.runtimes import RUNTIME_KINDS

    assert resolved("sums.py").settings.runtime == RUNTIME_KINDS["subprocess"]()
    for argv in (["--runtime", "docker"], ["--runtime.kind", "docker"], ["--runtime=docker"]):
        settings = resolved("sums.py", *argv, "--runtime.image", "py:3.11", "--runtime.persistent").settings
        assert isinstance(settings.runtime, RUNTIME_KINDS["docker"])
        assert (settings.runtime.image, settings.runtime.persistent) == ("py:3.11", True)  # type: ignore[attr-defined]
    Path("box.toml").write_text('[runtime]\nkind = "docker"\nimage = "a"\n')
    assert resolved("sums.py", "@box.toml", "--runtime.image", "b").settings.runtime.image == "b"  # type: ignore[attr-defined]


def test_the_kind_of_harness_brings_its_own_settings(place: Path) -> None:
    from rollwright.harnesses import HARNESS_KINDS

    assert resolved("sums.py").settings.harness == HARNESS_KINDS["chat"]()
    settings = resolved("sums.py", "--harness", "bash", "--harness.max-turns", "3", "--runtime", "sandbox").settings
    assert settings.harness == HARNESS_KINDS["bash"](max_turns=3)
    words = ["--harness", "command", "--harness.argv", "agent", "{prompt}", "--harness.env", "A", "{key}"]
    found = resolved("sums.py", *words)
    assert found.settings.harness == HARNESS_KINDS["command"](argv=("agent", "{prompt}"), env={"A": "{key}"})
    Path("again.toml").write_text(write_toml(config_of(found.settings, "sums.py")))
    assert resolved("@again.toml").settings.harness == found.settings.harness


def test_a_run_in_another_box_is_read_back_from_its_own_file(place: Path) -> None:
    found = resolved("sums.py", "--runtime", "docker", "--pool.max-boxes", "3")
    Path("again.toml").write_text(write_toml(config_of(found.settings, "sums.py")))
    again = resolved("@again.toml").settings
    assert (again.runtime, again.pool) == (found.settings.runtime, found.settings.pool)
    assert again.pool.max_boxes == 3


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--runtime", "dcoker"], "runtime 'dcoker' is not known; did you mean 'docker'?"),
        (["--runtime.image", "x"], "--runtime.image is a setting of docker"),
        (["--runtime.imgae", "x"], "--runtime.imgae is not a setting of eval; did you mean --runtime.image?"),
        (["--pool.max-boxes", "0"], "pool.max_boxes is 0; set it to 1 or more"),
        (["--harness", "claud-code"], "harness 'claud-code' is not known; did you mean 'claude-code'?"),
        (["--harness.argv", "x"], "--harness.argv is a setting of command harnesses; add --harness command"),
        (["--harness", "bash", "--harness.max-turns", "0"], "harness.max_turns is 0; set it above 0"),
        (["--harness", "command", "--harness.argv", "x", "{key}"], "harness.argv holds {key}"),
    ],
)
def test_a_box_that_makes_no_sense_is_refused_in_one_sentence(place: Path, argv: list[str], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolved("sums.py", *argv)
    assert str(caught.value).startswith(told)


def test_an_address_goes_with_the_tokens_engine_too(place: Path) -> None:
    settings = resolved("sums.py", "--engine", "tokens", "--base-url", "http://x/v1", "-m", "big").settings
    assert (settings.engine.kind, settings.engine.relay.base_url) == ("tokens", "http://x/v1")
    with pytest.raises(UsageError, match="the tokens engine needs to know which model"):
        resolved("sums.py", "--engine", "tokens", "--base-url", "http://x/v1")


@pytest.mark.parametrize("command", [EvalSettings, ServeSettings, OrchestrateCommand])
def test_what_a_failed_rollout_means_for_its_group_is_told_to_the_workers(place: Path, command: type) -> None:
    found = resolve(command, ["sums.py", "--group.partial", "wait", "--group.retries", "5"])
    assert found is not None
    spec = environment_spec(found.settings, found.taskset_name, found.engine_config())
    assert spec.group == GroupSettings("wait", 5)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("--launcher ray", "add --workers N"),
        ("--address tcp://127.0.0.1:0", "add --workers N"),
        ("--launcher ray --workers 2", "add --address tcp://HOST:PORT"),
        ("--advertise me --workers 2", "add --address tcp://HOST:PORT"),
        ("--launcher slurm --workers 2", "local or ray"),
    ],
)
def test_workers_elsewhere_need_an_address_to_reach_us(place: Path, words: str, hint: str) -> None:
    with pytest.raises(UsageError, match=hint):
        resolved("sums.py", *words.split())


def test_a_resumed_run_may_have_its_workers_elsewhere(place: Path) -> None:
    words = "--workers 2 --launcher ray --address tcp://h:1 --ray.slice-workers 2"
    settings = resolved("sums.py", *words.split()).settings
    assert (settings.launcher, settings.address, settings.ray.slice_workers) == ("ray", "tcp://h:1", 2)
    assert {"launcher", "address", "advertise", "ray.slice_workers"} <= settings.may_change
