"""A warmup that yields: served after its first step, gone on with when there is time, watched all the while."""

import asyncio
from pathlib import Path

import pytest

STEPS = """
import memory, os, sys
def warmup():
    memory.STEPS.append(1)
    yield
    {second}
    yield
    memory.STEPS.append(3)
"""
SAYS = "if __name__ == '__main__': print(*memory.STEPS, os.environ['HOME'])"


@pytest.fixture
def stepping(script, tmp_path):
    def write(second, then=SAYS):
        (tmp_path / "memory.py").write_text("STEPS = []")
        return script(STEPS.format(second=second) + then)

    return write


async def _steps(box, path, **options):
    return (await box.run_script(path, warm=True, **options)).text.split()[:-1]


async def test_it_goes_on_when_nobody_asks(box, stepping, counted):
    path = stepping("memory.STEPS.append(2)")
    seen = [await _steps(box, path)]
    async with asyncio.timeout(30):
        while seen[-1] != ["1", "2", "3"]:
            await asyncio.sleep(0.05)
            seen.append(await _steps(box, path))
    assert all(steps == ["1", "2", "3"][: len(steps)] and steps for steps in seen)
    assert (counted.forked, counted.cold) == (len(seen), {})


async def test_it_goes_on_when_calls_pay_for_its_lack(box, stepping):
    """One call runs all the time, so that the zygote always has something to do."""
    burns = (
        "import time\nif __name__ == '__main__':\n"
        "    if sys.argv[1:]: open('began', 'w').close()\n"
        "    while sys.argv[1:] and not os.path.exists('go'): time.sleep(0.001)\n"
        "    end = time.process_time() + 0.1\n    while time.process_time() < end: pass\n"
        "    print(*memory.STEPS, os.environ['HOME'])\n"
    )
    path = stepping("memory.STEPS.append(2)", burns)
    workspace = Path(box._running().workspace)
    long_one = asyncio.create_task(box.run_script(path, ["wait"], warm=True))
    async with asyncio.timeout(60):
        while not (workspace / "began").exists():
            await asyncio.sleep(0.001)
        assert await _steps(box, path) in (["1"], ["1", "2"], ["1", "2", "3"])
        while await _steps(box, path) != ["1", "2", "3"]:
            continue
    (workspace / "go").touch()
    assert (await long_one).exit_code == 0


@pytest.mark.parametrize("second", ["memory.HOME = os.environ['HOME']", "raise ValueError", "os.environ['X'] = 'y'"])
async def test_a_step_after_which_nothing_would_be_as_cold_ends_the_warmth(box, stepping, counted, second):
    path = stepping(second)
    async with asyncio.timeout(30):
        while not counted.cold:
            result = await box.run_script(path, warm=True)
            assert result.exit_code == 0
            assert result.text.split()[-1] == box._running().home
            await asyncio.sleep(0.05)
    assert result.text.split()[:-1] == []  # A cold run has done no step.
    assert set(counted.cold) <= {"no seat", "environment"}
