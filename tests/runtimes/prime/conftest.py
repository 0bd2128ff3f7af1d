"""Boxes at the vendor on loopback."""

import pytest


@pytest.fixture
def vendor(prime_vendor):
    return prime_vendor


@pytest.fixture
def journal(tmp_path):
    from rollwright.runtimes.journal import Journal

    return Journal(tmp_path / "journal")


@pytest.fixture
def make(vendor, journal):
    """Boxes of this kind, with settings."""
    from rollwright.runtimes.prime import PrimeConfig
    from rollwright.runtimes.prime.runtime import PrimeRuntime

    def made(**settings):
        return PrimeRuntime(PrimeConfig(**{"creates_per_minute": 6000, **settings}), journal=journal)

    return made
