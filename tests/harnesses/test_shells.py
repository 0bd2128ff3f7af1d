"""The bash that is brought into boxes: packed once, whole by itself, and only where there is none."""

import asyncio
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from rollwright.harnesses import shells
from rollwright.harnesses.shells import bash_in, packed_bash
from rollwright.runtimes import Ending, ExecResult
from rollwright.wire import HarnessError, RuntimeFault

pytestmark = pytest.mark.skipif(
    not (shutil.which("bash") and shutil.which("ldd")), reason="there is no bash here that could be packed"
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Box:
    """Answers one command after the other."""

    name = "box-1"

    def __init__(self, *said, shows_cache=False):
        self.said = list(said)
        self.shows_cache = shows_cache
        self.ran = []

    async def run(self, argv, **options):
        self.ran.append(argv)
        return ExecResult(Ending.EXITED, 0, self.said.pop(0), b"")


async def unpacked(place):
    archive = await packed_bash()

    def unpack():
        with tarfile.open(archive) as tar:
            tar.extractall(place, filter="data")

    await asyncio.to_thread(unpack)
    return place


def ran(*words, path, cwd):
    told = subprocess.run(words, env={"PATH": path}, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    return told.returncode, told.stdout, told.stderr


async def test_it_runs_from_wherever_it_was_unpacked_and_knows_its_name(tmp_path):
    place = await unpacked(tmp_path / "an odd place")
    run = lambda *words: asyncio.to_thread(ran, *words, path=f"{place}:{os.defpath}", cwd=tmp_path)  # noqa: E731
    words = 'a=(x "y z"); [[ ${a[1]} == y* ]] && echo "$BASH" "$@"'
    assert await run("bash", "-c", words, "zero", "one two", "") == (0, f"{place}/bash one two \n", "")
    script = tmp_path / "script"
    script.write_text("#!/usr/bin/env bash\nshopt -s extglob\n\"$BASH\" -c 'exit 7'; echo $? <(:) | cut -c1-2\n")
    script.chmod(0o755)
    assert (await run(str(script)))[:2] == (0, "7 \n")


async def test_it_needs_no_library_of_the_box(tmp_path):
    """What is mapped into it lies in its own directory, all of it."""
    place = await unpacked(tmp_path / "here")
    words = [str(place / "bash"), "-c", 'while read -r line; do echo "$line"; done < /proc/$$/maps']
    _, told, _ = await asyncio.to_thread(ran, *words, path=os.defpath, cwd=tmp_path)
    mapped = {line.split()[5] for line in told.splitlines() if "/" in line.partition(" ")[2].rpartition(" ")[2]}
    assert mapped
    assert {path for path in mapped if not path.startswith(str(place))} == set()


async def test_it_is_packed_once(monkeypatch):
    first = await packed_bash()
    made = first.stat().st_mtime_ns
    monkeypatch.setattr(shells, "_pack", None)
    assert (await packed_bash(), first.stat().st_mtime_ns) == (first, made)


async def test_a_box_that_has_one_is_left_alone(cache):
    assert await bash_in(Box(b"")) == {}
    assert await bash_in(Box(shows_cache=True)) == {}
    assert not cache.exists()


async def test_a_box_that_has_it_from_an_earlier_rollout_is_not_given_it_again(monkeypatch):
    monkeypatch.setattr(shells, "host_platform", lambda: "linux-arm64")
    box = Box(b"/usr/bin:/bin", b"Linux aarch64\nhas /opt/rollwright/bash-1\n")
    place = "/opt/rollwright/bash-1"
    assert await bash_in(box) == {"SHELL": f"{place}/bash", "PATH": f"{place}:/usr/bin:/bin"}


@pytest.mark.parametrize(
    ("said", "error", "why"),
    [
        (
            b"Linux aarch64\nroom /opt/rollwright/x\n",
            RuntimeFault,
            r"box-1 \(linux-arm64\) has no bash, and this host's",
        ),
        (b"Linux x86_64\n", HarnessError, "has no place"),
    ],
)
async def test_a_box_that_it_cannot_be_brought_into_says_why(monkeypatch, said, error, why):
    monkeypatch.setattr(shells, "host_platform", lambda: "linux-x64")
    with pytest.raises(error, match=why):
        await bash_in(Box(b"/bin", said))


async def test_a_host_without_one_says_so(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(RuntimeFault, match="no bash on this host"):
        await packed_bash()


async def test_a_program_without_libraries_is_brought_as_it_is(monkeypatch, tmp_path):
    monkeypatch.setattr(shells, "_LIBRARY", shells.re.compile("nothing like it"))
    place = await unpacked(tmp_path / "static")
    assert os.listdir(place) == ["bash"]
    assert (place / "bash").read_bytes() == Path(shutil.which("bash")).read_bytes()
