"""What the tests of hostile clients share."""

import pytest

from .house import House


@pytest.fixture
def house():
    house = House()
    yield house
    house.unharmed()
    house.close()
