"""The program itself: its verbs, the doctor, and the thin slice of training."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rollwright import __version__
from rollwright.cli import probes
from rollwright.cli.main import VERBS, run
from rollwright.cli.probes import State
from rollwright.orchestrator.transports import BatchReceiver

from .conftest import ask, command


def test_alone_it_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    page = capsys.readouterr().out
    assert all(verb in page for verb in VERBS)
    assert run(["--help"]) == 0
    assert capsys.readouterr().out == page


def test_it_knows_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"rollwright {__version__}\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_reason_to_fail(place: Path, closed: str) -> None:
    line = " ".join(map(shlex.quote, command("eval", "sums.py", "-n", "2", "-r", "1", "-o", "out")))
    shell = ["/bin/sh", "-c", f"{line} {closed}"]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((place / "out" / "summary.json").read_text())


@pytest.mark.parametrize(
    ("argv", "unwanted"),
    [
        (["--help"], {"numpy", "msgspec", "aiohttp", "rich", "tyro"}),
        (["eval", "--help"], {"aiohttp", "rich", "zmq", "tokenizers", "uvloop"}),
    ],
)
def test_help_imports_little(argv: list[str], unwanted: set[str]) -> None:
    code = f"import sys\nfrom rollwright.cli.main import run\nrun({argv!r})\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "rollwright" in done.stdout
    assert not unwanted & set(done.stderr.split())


def test_the_doctor_looks_at_everything(place: Path) -> None:
    done = ask("doctor", "--json", "--base-url", "http://127.0.0.1:9")
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert {"uv", "memory", "cores", "limits", "cgroups", "landlock", "bubblewrap", "docker", "ray"} <= findings.keys()
    assert findings["event loop"]["what"] == "uvloop.Loop"
    assert findings["python"]["state"] == "ok"
    # The endpoint was asked for, so its silence is a failure.
    assert findings["endpoint"]["state"] == "broken"
    assert "check the address" in findings["endpoint"]["next_step"]
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_what_is_missing_comes_with_a_next_step() -> None:
    for probe in probes.ALL:
        finding = probe()
        assert finding.name
        assert finding.what
        assert finding.state is State.OK or finding.next_step or finding.name in ("landlock", "docker"), finding


def test_doctor_looks_at_the_cache_that_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    assert probes.cache_directory().what.startswith(f"{tmp_path / 'cache'}, ")


def test_a_probe_that_breaks_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken_thing() -> probes.Finding:
        raise OSError("no such luck")

    monkeypatch.setattr(probes, "ALL", (broken_thing, probes.python))
    assert run(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "broken   broken thing" in said
    assert "ok       python" in said


def test_orchestrate_writes_batches_that_a_trainer_reads(place: Path) -> None:
    argv = ["orchestrate", "sums.py", "--steps", "2", "--batch-size", "8", "--group-size", "4", "-o", "out", "--json"]
    done = ask(*argv)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["steps"], report["dispatched"], report["trained"]) == (2, 16, 16)
    receiver = BatchReceiver("out")
    assert [len(receiver.receive(timeout_s=5).samples) for _ in range(2)] == [8, 8]
    assert [line.split("  ")[0] for line in done.stderr.splitlines()[:2]] == ["step 1", "step 2"]
    again = ask(*argv)
    assert again.returncode == 2
    assert "already holds a run; add --resume" in again.stderr


def test_an_engine_without_token_ids_is_refused_before_any_group(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollwright.cli.resolve import Resolved

    told = Resolved.engine_config
    monkeypatch.setattr(Resolved, "engine_config", lambda self, tokens=False: told(self, tokens=False))
    assert run(["orchestrate", "sums.py", "-o", "out"]) == 1
    said = capsys.readouterr().err
    assert said == ("Error: model scripted answers without token ids; batches need an engine that returns them\n")
    assert not Path("out").exists()


def test_a_reader_that_leaves_is_no_failure() -> None:
    for argv in (["eval", "--help"], ["--help"], ["doctor"]):
        process = subprocess.Popen(command(*argv), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        _, said = process.communicate(timeout=60)
        assert (process.returncode, said) == (0, "")
