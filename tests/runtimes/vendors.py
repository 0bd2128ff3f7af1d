"""The vendors of remote boxes, played by servers on loopback that speak their wire protocols to their own SDKs. What
they give are machines of their own (remote/machine.py), and when a test is over they have none left.
"""

import asyncio

import pytest

from runtimes.remote import machine


def _needed(sdk, extra):
    pytest.importorskip(sdk, reason=f"the SDK is not installed: pip install 'rollwright[{extra}]'")
    if why := machine.why_not():
        pytest.skip(f"no machines for the vendor's server: {why}")


@pytest.fixture(scope="session")
def _prime_needed():
    """Looked at before a loop runs: finding out blocks."""
    _needed("prime_sandboxes", "prime")


@pytest.fixture
async def prime_vendor(tmp_path, monkeypatch, _prime_needed):
    from runtimes.prime.fake_prime import FakePrime

    async with FakePrime() as fake:
        for name in ("PRIME_CONTEXT", "PRIME_TEAM_ID", "PRIME_BASE_URL"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(tmp_path / "host-home"))
        monkeypatch.setenv("PRIME_API_KEY", fake.key)
        monkeypatch.setenv("PRIME_API_BASE_URL", fake.url)
        yield fake
        assert fake.running() == [], "a box was left at the vendor"
        assert fake.networks == {}, "a network was left at the vendor"


@pytest.fixture(scope="session")
def _modal_servers():
    _needed("modal", "modal")
    from runtimes.modal.modal_standin import TOKEN, StandIn

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
def modal_vendor(_modal_servers):
    before = set(_modal_servers.running())
    yield _modal_servers
    assert set(_modal_servers.running()) == before, "a sandbox was left running"
