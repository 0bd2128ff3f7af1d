"""Sandboxes with a journal of their own; skipped, with the reason, where none can be made."""

import functools
import shutil
import subprocess

import pytest

from rollwright.runtimes.journal import Journal
from rollwright.runtimes.sandbox import SandboxConfig
from rollwright.runtimes.sandbox.runtime import SandboxRuntime


@functools.cache
def why_not():
    """Why no sandbox can be made here; empty where one can."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    words = ["bwrap", "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    tried = subprocess.run(words, capture_output=True, text=True)
    return f"the kernel refuses namespaces: {tried.stderr.strip()}" if tried.returncode else ""


def pytest_collection_modifyitems(items):
    for item in items:
        if "sandbox" in item.path.parts and item.get_closest_marker("namespaces") and why_not():
            item.add_marker(pytest.mark.skip(reason=why_not()))


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path / "journal")
    yield journal
    assert list(journal.entries()) == [], "a box that was freed is still written down"


@pytest.fixture
def make(journal):
    if why_not():
        pytest.skip(why_not())
    return lambda **settings: SandboxRuntime(SandboxConfig(**settings), journal=journal)
