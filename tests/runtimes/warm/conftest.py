"""One box and one cache of interpreters for all scripts of this folder: they need nothing but the standard library."""

import os
from pathlib import Path

import pytest

from rollwright.runtimes import SubprocessConfig, SubprocessRuntime
from rollwright.runtimes.warm import keeper, stats

HEAD = '# /// script\n# requires-python = ">=3.10"\n# dependencies = []\n# ///\n'


@pytest.fixture(scope="session")
def interpreters(tmp_path_factory):
    return tmp_path_factory.mktemp("interpreters")


@pytest.fixture(autouse=True)
def cached(interpreters, monkeypatch):
    monkeypatch.setenv("ROLLWRIGHT_CACHE_DIR", str(interpreters))


@pytest.fixture
async def box(tmp_path):
    boxes = tmp_path / "boxes"
    boxes.mkdir()
    async with SubprocessRuntime(
        SubprocessConfig(directory=str(boxes), memory_mb=512, output_limit=60 << 20)
    ) as runtime:
        yield runtime
    await keeper().close()
    assert list(boxes.iterdir()) == []


@pytest.fixture
def script(tmp_path):
    """Writes a script and gives its path."""

    def write(body, name="a script.py"):
        path = tmp_path / name
        path.write_text(HEAD + body)
        return path

    return write


@pytest.fixture
def counted():
    """What was counted since the test began."""
    before = (stats.forked, stats.shared, dict(stats.cold))

    class Counted:
        @property
        def forked(self):
            return stats.forked - before[0]

        @property
        def shared(self):
            return stats.shared - before[1]

        @property
        def cold(self):
            now = {why: count - before[2].get(why, 0) for why, count in stats.cold.items()}
            return {why: count for why, count in now.items() if count}

    return Counted()


def tree(root):
    """Every path below `root` with its type, mode and content."""
    found = {}
    for folder, dirs, files in os.walk(root):
        for name in (*dirs, *files):
            path = Path(folder, name)
            told = path.lstat()
            content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
            found[str(path.relative_to(root))] = (oct(told.st_mode), content)
    return found


def runs(pid):
    """A zombie that waits for its reaper does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
