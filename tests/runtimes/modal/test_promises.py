"""A box at Modal keeps the promises of all boxes, through the vendor's SDK, on real processes."""

import pytest

from rollwright.runtimes.testing import PROMISES, check_promise


@pytest.mark.parametrize("name", PROMISES)
async def test_the_promise_is_kept(make, name):
    await check_promise(name, make)
