"""A museum of wrong commands: each gets one sentence with the next step, exit code 2, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollwright.cli.main import run

from .conftest import ask

FILES = {
    "broken.toml": b"rollouts = = 3\n",
    "latin.toml": b'model = "caf\xe9"\n',
    "unknown.toml": b"[runtime]\nmemory = 3\n",
    "unknown_table.toml": b"[runtimes]\nmemory_mb = 3\n",
    "wrong_type.toml": b'[limits]\nmax_turns = "many"\n',
    "text_for_switch.toml": b'shuffle = "yes"\n',
    "not_a_table.toml": b"limits = 3\n",
    "taskset_text.toml": b'taskset = "sums.py"\n',
    "taskset_key.toml": b"[taskset]\ncout = 3\n",
    "zero.toml": b"concurrency = 0\n",
    "filter_kind.toml": b'[[filters]]\nkind = "lenght"\n',
    "filter_field.toml": b'[[filters]]\nkind = "length"\nmost = 3\n',
    "no_class.py": b"x = 1\n",
    "raises.py": b"raise RuntimeError('not today')\n",
    "syntax.py": b"def (:\n",
}

MUSEUM = [
    (["evil"], ["no verb 'evil'", "did you mean 'eval'?"]),
    (["eval"], ["needs a taskset", "gsm8k"]),
    (["eval", "gsm8"], ["gsm8", "did you mean 'gsm8k'?"]),
    (["eval", "nowhere.py"], ["nowhere.py", "cannot be read"]),
    (["eval", "no_class.py"], ["no_class.py", "give it one class that extends Taskset"]),
    (["eval", "raises.py"], ["raises.py", "not today"]),
    (["eval", "syntax.py"], ["syntax.py", "SyntaxError"]),
    (["eval", "sums.py", "gsm8k"], ["one taskset", "leave one out"]),
    (["eval", "--json", "sums.py", "gsm8k"], ["one taskset", "put it first"]),
    (["eval", "sums.py", "@"], ["@ needs a settings file"]),
    (["eval", "sums.py", "@", "nope.toml"], ["nope.toml", "check the path after @"]),
    (["eval", "sums.py", "@."], ["cannot be read"]),
    (["eval", "sums.py", "@broken.toml"], ["broken.toml", "not valid TOML", "line 1"]),
    (["eval", "sums.py", "@latin.toml"], ["latin.toml", "UTF-8"]),
    (["eval", "sums.py", "@unknown.toml"], ["unknown.toml: runtime.memory", "did you mean runtime.memory_mb?"]),
    (["eval", "sums.py", "@unknown_table.toml"], ["unknown_table.toml: runtimes", "did you mean runtime?"]),
    (["eval", "sums.py", "@wrong_type.toml"], ["wrong_type.toml: limits.max_turns takes", "whole number", "'many'"]),
    (["eval", "sums.py", "@text_for_switch.toml"], ["shuffle takes true or false", "'yes'"]),
    (["eval", "sums.py", "@not_a_table.toml"], ["limits is a table", "write [limits]"]),
    (["eval", "sums.py", "@taskset_text.toml"], ["taskset is a table", "name = "]),
    (["eval", "sums.py", "@taskset_key.toml"], ["taskset_key.toml: taskset.cout", "did you mean taskset.count?"]),
    (["orchestrate", "sums.py", "@filter_kind.toml"], ["filters[0].kind", "'lenght'", "repetition, gibberish, length"]),
    (["orchestrate", "sums.py", "@filter_field.toml"], ["filter_field.toml: filters[0]", "unknown field `most`"]),
    (["eval", "sums.py", "@zero.toml"], ["concurrency (-c) is 0", "1 or more"]),
    (["eval", "sums.py", "--runtim.persistent", "true"], ["did you mean --runtime.persistent?"]),
    (["eval", "sums.py", "--runtime.memory", "3"], ["did you mean --runtime.memory-mb?"]),
    (["eval", "sums.py", "--taskset.cout", "3"], ["did you mean --taskset.count?"]),
    (["eval", "sums.py", "-x"], ["-x is not a setting of eval"]),
    (["eval", "sums.py", "--zzzzzzzz", "3"], ["--zzzzzzzz", "rollwright eval --help"]),
    (["eval", "sums.py", "-m"], ["-m needs a value"]),
    (["eval", "sums.py", "-m", "--json"], ["-m needs a value"]),
    (["eval", "sums.py", "--runtime.memory-mb", "lots"], ["--runtime.memory-mb takes", "whole number", "'lots'"]),
    (["eval", "sums.py", "--json=maybe"], ["--json takes true or false"]),
    (["eval", "sums.py", "--taskset.op", "minus"], ["--taskset.op takes plus or and"]),
    (["eval", "sums.py", "--engine", "magic"], ["scripted or local or relay"]),
    (["eval", "sums.py", "--engine.scripted.faults", "stall"], ["--engine.scripted.faults takes a table"]),
    (["eval", "sums.py", "--engine.scripted.faults", "stall", "2"], ["probabilit"]),
    (["eval", "sums.py", "--engine.scripted.solver-options", "a"], ["in a file", "settings.toml"]),
    (["eval", "sums.py", "-c", "0"], ["concurrency (-c) is 0", "1 or more"]),
    (["eval", "sums.py", "-c", "-4"], ["concurrency (-c) is -4", "1 or more"]),
    (["eval", "sums.py", "-n", "0"], ["tasks (-n) is 0", "1 or more"]),
    (["eval", "sums.py", "-n", "some"], ["--tasks takes a whole number or all"]),
    (["eval", "sums.py", "-r", "0"], ["rollouts (-r) is 0", "1 or more"]),
    (["eval", "sums.py", "--seed", "-1"], ["seed is -1", "0 or more"]),
    (["eval", "sums.py", "--taskset.count", "0"], ["has no tasks", "check its source"]),
    (["eval", "sums.py", "--base-url", "http://127.0.0.1:9"], ["add -m MODEL"]),
    (["eval", "sums.py", "--base-url", "http://127.0.0.1:9", "--engine", "local"], ["leave one of them out"]),
    (["eval", "sums.py", "-o", "sums.py/run"], ["is not a directory", "another one with -o"]),
    (["eval", "sums.py", "-o", "n" * 300], ["too long for the name", "another one with -o"]),
    (["orchestrate", "sums.py", "-o", "n" * 300], ["too long for the name", "another one with -o"]),
    (["eval", "sums.py", "--resume"], ["no run runs/sums--scripted--", "leave out --resume"]),
    (["eval", "sums.py", "--resume", "-o", "empty"], ["empty holds no run to resume", "leave out --resume"]),
    (["orchestrate", "sums.py"], ["add -o DIR"]),
    (["orchestrate", "sums.py", "-o", "out", "--batch-size", "0"], ["batch_size is 0"]),
    (["orchestrate", "sums.py", "-o", "out", "--lag", "9"], ["max_staleness 8 must be at least lag 9"]),
    (["orchestrate", "sums.py", "-o", "out", "--advantage", "gropo"], ["advantage 'gropo'", "grpo"]),
    (["orchestrate", "sums.py", "-o", "out", "--advantage.decay", "0.5"], ["ema advantages; add --advantage ema"]),
    (["orchestrate", "sums.py", "-o", "out", "--fleet.urls", "here"], ["no address"]),
    (["orchestrate", "sums.py", "-o", "out", "--steps", "0"], ["steps is 0", "1 or more"]),
    (["orchestrate", "sums.py", "-o", "out", "-r", "3"], ["-r is not a setting of orchestrate"]),
    (["doctor", "now"], ["doctor takes no words"]),
    (["doctor", "--jsn"], ["did you mean --json?"]),
]


@pytest.mark.parametrize(("argv", "words"), MUSEUM, ids=lambda value: " ".join(value)[:60])
def test_a_wrong_command_gets_one_sentence(
    place: Path, capsys: pytest.CaptureFixture[str], argv: list[str], words: list[str]
) -> None:
    for name, content in FILES.items():
        (place / name).write_bytes(content)
    before = sorted(place.rglob("*"))
    assert run(argv) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1, said.err
    assert said.err.startswith("Error: ")
    assert "Traceback" not in said.err
    for word in words:
        assert word in said.err
    assert [path for path in sorted(place.rglob("*")) if "__pycache__" not in path.parts] == before


def test_an_endpoint_that_is_away_is_failed_work(place: Path) -> None:
    done = ask("eval", "sums.py", "--base-url", "http://127.0.0.1:9", "-m", "x", "-o", "out")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: http://127.0.0.1:9")
    assert "check the base_url" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not Path("out").exists()


def test_a_traceback_is_for_those_who_ask(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["eval", "gsm8", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_bug_is_one_line_and_a_file(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise KeyError("lost")

    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("rollwright.cli.eval.main", broken)
    assert run(["eval", "sums.py"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("Error: KeyError: 'lost'")
    assert said.count("\n") == 1
    details = Path(said.rsplit(" ", 1)[1].strip())
    assert "Traceback" in details.read_text()
