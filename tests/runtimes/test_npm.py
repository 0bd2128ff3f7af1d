"""Programs from npm: fetched once, pinned, checked, and never half there. The registry is a shell script here."""

import asyncio
import json
import os

import pytest

from rollwright.harnesses.install import PARTS, main
from rollwright.runtimes.provision import NpmProgram, find_npm, host_platform, npm, provision_npm
from rollwright.wire import RuntimeFault, UsageError

TOOL = NpmProgram("@some/tool", "1.2.3", "vendor/*/bin/tool")
# It answers as npm does: what was asked for is put below --prefix. Each call is noted.
FAKE = """#!/bin/sh
echo "$*" >> "$NPM_LOG"
[ -n "$NPM_FAILS" ] && { echo "npm error 404 no such package" >&2; exit 1; }
place="$3/node_modules/@some/tool"
mkdir -p "$place/vendor/any/bin"
printf '{"version": "%s"}' "${NPM_BRINGS:-1.2.3}" > "$place/package.json"
[ -n "$NPM_HANGS" ] && { : > "$NPM_HANGS"; sleep 1000; }
printf '#!/bin/sh\\necho hello\\n' > "$place/vendor/any/bin/tool"
chmod +x "$place/vendor/any/bin/tool"
"""


@pytest.fixture
def log(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "npm"
    program.write_text(FAKE)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("ROLLWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("NPM_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


async def test_it_is_fetched_once_for_all_who_ask(log):
    assert find_npm(TOOL) is None
    found = await asyncio.gather(*(provision_npm(TOOL) for _ in range(8)))
    assert len(set(found)) == 1
    assert os.access(found[0], os.X_OK)
    assert await provision_npm(TOOL) == found[0] == find_npm(TOOL)
    (words,) = log.read_text().splitlines()
    assert words.endswith(" -- @some/tool@1.2.3"), "the pinned version and no range"
    assert "--ignore-scripts" in words.split(), "no code of a package runs on this host"


async def test_another_version_than_the_one_meant_is_refused(log, monkeypatch):
    monkeypatch.setenv("NPM_BRINGS", "1.1.0")
    with pytest.raises(RuntimeFault, match=r"npm brought @some/tool 1\.1\.0 instead of 1\.2\.3"):
        await provision_npm(TOOL)
    assert find_npm(TOOL) is None
    monkeypatch.delenv("NPM_BRINGS")
    assert await provision_npm(TOOL) == find_npm(TOOL)


async def test_what_a_cut_off_fetch_left_is_not_used(log, monkeypatch, tmp_path):
    monkeypatch.setenv("NPM_HANGS", str(tmp_path / "half-way"))
    first = asyncio.create_task(provision_npm(TOOL))
    async with asyncio.timeout(30):
        while not (tmp_path / "half-way").exists():
            await asyncio.sleep(0.005)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (TOOL.place / "node_modules").exists()
    assert find_npm(TOOL) is None
    monkeypatch.delenv("NPM_HANGS")
    async with asyncio.timeout(30):
        assert await provision_npm(TOOL) == find_npm(TOOL)


async def test_a_package_without_the_program_is_refused(log):
    program = NpmProgram("@some/tool", "1.2.3", "bin/other")
    with pytest.raises(RuntimeFault, match="has no program 'bin/other'"):
        await provision_npm(program)


async def test_what_npm_says_is_told(log, monkeypatch):
    monkeypatch.setenv("NPM_FAILS", "1")
    with pytest.raises(RuntimeFault, match=r"(?s)npm ended with 1 while fetching @some/tool 1\.2\.3:.*404"):
        await provision_npm(TOOL)


async def test_without_npm_the_next_step_is_named(log, monkeypatch):
    monkeypatch.setattr(npm.shutil, "which", lambda name: None)
    with pytest.raises(UsageError, match=r"needs npm.*install Node\.js"):
        await provision_npm(TOOL)


def test_versions_do_not_share_a_place_or_a_lock(log):
    other = NpmProgram("@some/tool", "1.2.4", "x")
    assert TOOL.place != other.place
    assert TOOL.place.name == "some-tool-1.2.3"


def test_the_set_up_names_what_it_can_fetch(log, capsys, monkeypatch):
    assert main([]) == 2
    assert main(["codx"]) == 2
    assert main(["--help"]) == 0
    told = capsys.readouterr()
    assert "codex, claude-code" in told.out
    if host_platform():
        monkeypatch.setenv("NPM_FAILS", "1")
        assert main(["codex"]) == 1
        assert "Error: codex cannot be had: npm ended with 1" in capsys.readouterr().err
    assert PARTS["codex"].find() is None


def test_the_manifest_is_json_or_refused(log):
    place = TOOL.place / "node_modules" / "@some" / "tool"
    place.mkdir(parents=True)
    (place / "package.json").write_text("{")
    with pytest.raises(RuntimeFault, match="npm brought no @some/tool"):
        npm._checked(TOOL)
    (place / "package.json").write_text(json.dumps({"version": "1.2.3"}))
    with pytest.raises(RuntimeFault, match="has no program"):
        npm._checked(TOOL)
