"""Boxes that talk through the vendor's own SDK to the stand-in for its servers."""

import pytest

from rollwright.runtimes.journal import Journal


@pytest.fixture
def world(modal_vendor):
    return modal_vendor


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / "boxes")


@pytest.fixture
def make(world, journal):
    """Makes boxes. When the test is over, the journal is empty."""
    from rollwright.runtimes.modal import ModalConfig
    from rollwright.runtimes.modal.runtime import ModalRuntime
    from rollwright.runtimes.modal.vendor import Vendor

    vendor = Vendor()

    def made(**settings):
        given = {"creates_per_s": 1000.0, "ports": (8123,), **settings}
        return ModalRuntime(ModalConfig(**given), journal=journal, vendor=vendor)

    yield made
    assert list(journal.entries()) == []


@pytest.fixture
async def box(make):
    async with make() as runtime:
        yield runtime
