"""`rollwright doctor --sweep`: what a killed run left is told, freed, and told again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from rollwright.cli.main import run
from rollwright.dialects import ImageStore
from rollwright.runtimes.journal import Journal, started_at

_OWNER = """
    import asyncio, os, sys
    from rollwright.runtimes import SubprocessConfig, SubprocessRuntime

    async def main():
        box = SubprocessRuntime(SubprocessConfig(directory=sys.argv[1]))
        await box.start()
        result = await box.run(["sh", "-c", "setsid sleep 1000 > /dev/null 2>&1 & echo $!"])
        print(result.text, flush=True)
        os.kill(os.getpid(), 9)

    asyncio.run(main())
"""


@pytest.fixture
def boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROLLWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "boxes").mkdir()
    return tmp_path / "boxes"


def _findings(said: str) -> dict[str, dict[str, str]]:
    return {finding["name"]: finding for finding in json.loads(said)["findings"]}


def test_what_a_killed_run_left_is_freed(boxes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [sys.executable, "-c", textwrap.dedent(_OWNER), str(boxes)]
    pid = int(subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False).stdout)
    (box,) = boxes.iterdir()
    assert started_at(pid)
    run(["doctor", "--json"])
    left = _findings(capsys.readouterr().out)["left boxes"]
    assert (left["state"], left["next_step"]) == ("missing", "free them: rollwright doctor --sweep")
    assert box.exists(), "only a sweep changes anything"

    run(["doctor", "--sweep", "--json"])
    said = capsys.readouterr().out
    (name,) = json.loads(said)["swept"]["freed"]
    assert name.removeprefix("subprocess-") in box.name
    assert _findings(said)["left boxes"]["what"] == "none"
    assert not box.exists()
    assert started_at(pid) == ""
    assert list(Journal().entries()) == []


_SPILLER = """
    import os
    from rollwright.dialects import ImageStore

    store = ImageStore(0)
    store.put(b"x" * 5000, "image/png")
    os.kill(os.getpid(), 9)
"""


def test_images_that_a_killed_run_left_on_disk_are_removed(
    boxes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", None)
    subprocess.run([sys.executable, "-c", textwrap.dedent(_SPILLER)], timeout=60, check=False)
    (left,) = place.iterdir()
    with ImageStore(0) as mine:
        image = mine.put(b"y" * 5000, "image/png")
        run(["doctor", "--json"])
        found = _findings(capsys.readouterr().out)["left images"]
        step = "remove them: rollwright doctor --sweep"
        assert (found["state"], found["what"], found["next_step"]) == ("missing", "1 directory", step)
        assert left.exists(), "only a sweep changes anything"

        run(["doctor", "--sweep", "--json"])
        said = capsys.readouterr().out
        assert json.loads(said)["swept"] == {"freed": [], "failed": {}, "image_directories": 1}
        assert _findings(said)["sweep"]["what"] == "0 freed; 1 directory of images removed"
        assert _findings(said)["left images"]["what"] == "none"
        assert not left.exists()
        assert mine.get(image) == b"y" * 5000, "what a living process uses stays"
    assert list(place.iterdir()) == []


def test_what_cannot_be_freed_is_told(boxes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = Journal()
    journal.open("subprocess", "subprocess-odd", {"directory": str(boxes), "mark": ""})
    path = journal.directory / "subprocess-odd.json"
    path.write_text(path.read_text().replace(f'"pid":{os.getpid()}', '"pid":999999999'))
    assert run(["doctor", "--sweep"]) == 1
    said = capsys.readouterr().out
    assert "broken   sweep" in said
    assert "subprocess-odd: RuntimeFault" in said
    assert boxes.exists()
