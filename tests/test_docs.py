"""What the pages show, runs: every Python block, and every command that needs nothing from outside."""

import os
import re
import shlex
from pathlib import Path

import pytest

from forked import python

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ELSEWHERE = ("--base-url", "--engine local", "doctor")
NEEDS_SCRIPTS = ("eval gsm8k", "eval aime24", "eval math")


def steps(page):
    for kind, text in BLOCK.findall(page.read_text()):
        if kind == "python":
            yield ["-W", "error", "-c", text]
            continue
        for line in text.splitlines():
            command = line.removeprefix("$ ").removeprefix(".venv/bin/").split("#")[0].strip()
            offline = not any(word in command for word in ELSEWHERE + NEEDS_SCRIPTS)
            if line.startswith("$ ") and command.startswith("rollwright ") and offline:
                yield ["-m", *shlex.split(command)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs_from_top_to_bottom(page, tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    ran = 0
    for arguments in steps(page):
        run = python(*arguments, cwd=tmp_path, env=environment)
        assert run.returncode == 0, f"python {shlex.join(arguments)}\n{run.stdout}\n{run.stderr}"
        ran += 1
    assert ran or page.stem == "benchmarks"


def test_links_lead_somewhere():
    for page in [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_is_reachable_from_the_readme():
    text = (ROOT / "README.md").read_text()
    assert [page.name for page in PAGES[1:] if f"docs/{page.name}" not in text] == []
