"""The sandbox is held to what every box promises, in a network of its own and in the host's."""

import pytest

from rollwright.runtimes import make_runtime
from rollwright.runtimes.poison import check_unpoisoned, poison
from rollwright.runtimes.sandbox import SandboxConfig
from rollwright.runtimes.sandbox.runtime import SandboxRuntime
from rollwright.runtimes.testing import PROMISES, check_promise, sh
from rollwright.wire import UsageError


@pytest.mark.parametrize("network", ["none", "full"])
@pytest.mark.parametrize("name", PROMISES)
def test_the_sandbox_keeps_its_promises(name, network, make, on_loop):
    on_loop(check_promise(name, lambda: make(network=network)))


@pytest.mark.parametrize("network", ["none", "full"])
async def test_poison_is_not_found_by_the_next_user(make, network):
    async with make(network=network) as box:
        fresh = await box.inspect()
        await poison(box, files=3000, fill_mb=4)
        await box.reset()
        await check_unpoisoned(box, fresh)


async def test_a_hundred_thousand_files_are_bounded_and_cost_a_reset_nothing(make):
    async with make(disk_files=500) as box:
        fresh = await box.inspect()
        told = await sh(box, "touch $(seq -f f%g 600) 2>&1 | head -n 1; ls | wc -l")
        assert "No space left" in told
        assert int(told.split()[-1]) < 500
        await box.reset()
        assert await box.inspect() == fresh


async def test_a_place_is_bounded_in_size(make):
    async with make(disk_mb=2) as box:
        assert "No space left" in await sh(box, 'head -c 3000000 /dev/zero 2>&1 > "$HOME/x" | cat; cat $HOME/x | wc -c')


def test_settings_are_checked():
    for wrong in ({"memory_mb": -1}, {"disk_mb": 0}, {"visible": ("here",)}, {"workspace_from": "there"}):
        with pytest.raises(UsageError):
            SandboxConfig(**wrong)


def test_the_factory_knows_the_kind():
    assert isinstance(make_runtime(SandboxConfig()), SandboxRuntime)
