"""One stand-in for the vendor's servers, and boxes that talk to it through the vendor's own SDK."""

import asyncio
import sys
from pathlib import Path

import pytest

from rollwright.runtimes.journal import Journal

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def world():
    pytest.importorskip("modal", reason="the SDK of Modal is not installed: pip install 'rollwright[modal]'")
    from modal_container import why_not

    if reason := why_not():
        pytest.skip(reason)
    from modal_standin import TOKEN, StandIn

    with StandIn() as standin, pytest.MonkeyPatch.context() as patch:
        patch.setenv("MODAL_SERVER_URL", standin.url)
        patch.setenv("MODAL_TOKEN_ID", TOKEN[0])
        patch.setenv("MODAL_TOKEN_SECRET", TOKEN[1])
        yield standin
        asyncio.run(_close_client())


async def _close_client():
    import modal

    client = await modal.Client.from_env.aio()
    await client._close.aio()


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / "boxes")


@pytest.fixture
def make(world, journal):
    """Makes boxes. When the test is over, the vendor has none of them left and the journal is empty."""
    from modal_container import PLACE

    from rollwright.runtimes.modal import ModalConfig
    from rollwright.runtimes.modal.runtime import ModalRuntime
    from rollwright.runtimes.modal.vendor import Vendor

    vendor = Vendor()

    def made(**settings):
        given = {"directory": PLACE, "watched": ("/mnt",), "creates_per_s": 1000.0, "ports": (8123,), **settings}
        return ModalRuntime(ModalConfig(**given), journal=journal, vendor=vendor)

    before = set(world.running())
    yield made
    assert set(world.running()) == before, "a sandbox was left running"
    assert list(journal.entries()) == []


@pytest.fixture
async def box(make):
    async with make() as runtime:
        yield runtime
