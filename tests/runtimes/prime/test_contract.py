"""The promises of every box, through the vendor's SDK and wire, with both ways of resetting."""

import pytest

from rollwright.runtimes.testing import PROMISES, check_promise


@pytest.mark.parametrize("name", PROMISES)
async def test_a_promise_is_kept(name, make, journal):
    await check_promise(name, make)
    assert list(journal.entries()) == []


@pytest.mark.parametrize("name", [name for name in PROMISES if "reset" in name])
async def test_a_promise_about_resets_is_kept_by_cleaning(name, make):
    await check_promise(name, lambda: make(reset="clean"))
