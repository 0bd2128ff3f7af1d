"""A vendor on loopback, and boxes that are looked for at the end."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def _needed():
    pytest.importorskip("prime_sandboxes", reason="the SDK is not installed: pip install 'rollwright[prime]'")
    import nsbox

    if why := nsbox.missing():
        pytest.skip(f"no boxes for the vendor's server: {why}")


@pytest.fixture
async def vendor(tmp_path, monkeypatch, _needed):
    from fake_prime import FakePrime

    async with FakePrime() as fake:
        for name in ("PRIME_CONTEXT", "PRIME_TEAM_ID", "PRIME_BASE_URL"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(tmp_path / "host-home"))
        monkeypatch.setenv("PRIME_API_KEY", fake.key)
        monkeypatch.setenv("PRIME_API_BASE_URL", fake.url)
        yield fake
        assert fake.running == [], "a box was left at the vendor"
        assert fake.networks == {}, "a network was left at the vendor"


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
        given = {"directory": "/mnt/rollwright", "watched": ("/mnt",), "creates_per_minute": 6000, **settings}
        return PrimeRuntime(PrimeConfig(**given), journal=journal)

    return made
