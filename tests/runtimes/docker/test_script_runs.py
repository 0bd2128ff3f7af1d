"""PEP 723 scripts in a container, with the image's own interpreter and packages prepared outside."""

import asyncio
import sys
import zipfile

import pytest

from rollwright.runtimes import Ending
from rollwright.runtimes.docker.relay import Relay, to_dialled
from rollwright.wire import RuntimeFault

_SCRIPT = """# /// script
# requires-python = "REQUIRES"
# dependencies = [DEPENDENCIES]
# ///
import os, sys
try:
    import tiny
    word = tiny.WORD
except ImportError:
    word = "nothing"
print(word, sys.argv[1:], os.getcwd(), os.environ.get("GIVEN"), sys.stdin.read())
sys.exit(3)
"""


@pytest.fixture
def script(tmp_path):
    """Writes a script with these needs."""

    def write(dependencies="", requires=">=3.8"):
        path = tmp_path / "a script.py"
        path.write_text(_SCRIPT.replace("DEPENDENCIES", dependencies).replace("REQUIRES", requires))
        return path

    return write


@pytest.fixture
def wheel(tmp_path):
    """A dependency that no index is asked for."""
    path = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny.py", "WORD = 'tiny'\n")
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", "tiny.py,,\n")
    return f'"tiny @ {path.as_uri()}"'


async def test_a_script_runs_with_what_it_declares(make, script, wheel):
    async with make() as box:
        for _ in range(2):
            result = await box.run_script(script(wheel), ["a b"], env={"GIVEN": "g"}, stdin=b"in", timeout_s=30)
            assert result.text == "tiny ['a b'] /workspace g in\n"
            assert (result.ending, result.exit_code) == (Ending.EXITED, 3)
            await box.reset()
        plain = await box.run_script(script(), timeout_s=30)
        assert plain.text.startswith("nothing [] /workspace")


async def test_a_script_cannot_be_changed_by_the_box(box, script):
    await box.run_script(script(), timeout_s=30)
    tried = await box.run(["sh", "-c", "find /opt/rollwright -name '*.py' | while read f; do echo x > \"$f\"; done"])
    assert b"Read-only" in tried.stderr or b"read-only" in tried.stderr


async def test_an_engine_that_does_not_share_our_files_is_sent_them(make, script, wheel, engine_socket):
    relay = Relay(to_dialled(lambda: asyncio.open_unix_connection(engine_socket)))
    relay.attach(server := await asyncio.start_server(relay.accept, "127.0.0.1", 0))
    try:
        async with make(socket=f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}") as box:
            for _ in range(2):
                result = await box.run_script(script(wheel), timeout_s=30)
                assert result.text.startswith("tiny []"), result
    finally:
        await relay.close()


async def test_a_version_that_the_image_lacks_is_told(box, script):
    with pytest.raises(RuntimeFault, match=f"the image has {sys.version_info[0]}.{sys.version_info[1]}"):
        await box.run_script(script(requires=">=4"))
