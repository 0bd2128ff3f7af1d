"""The entry point really runs uvloop, and puts back what it changed."""

import asyncio
import gc
import signal
import subprocess
import sys
import textwrap

import pytest

from rollwright.telemetry import new_event_loop, run
from rollwright.telemetry.loop import GC_THRESHOLDS, SWITCH_INTERVAL_S


async def running():
    return type(asyncio.get_running_loop()).__module__, sys.getswitchinterval()


def test_the_running_loop_is_uvloop():
    module, interval_s = run(running())
    assert module.startswith("uvloop")
    assert interval_s == pytest.approx(SWITCH_INTERVAL_S)


def test_without_uvloop_asyncio_s_own_loop_serves(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert run(running())[0].startswith("asyncio")
    loop = new_event_loop()
    loop.close()
    assert isinstance(loop, asyncio.BaseEventLoop)


def test_the_switch_interval_is_put_back_also_after_an_error():
    before_s = sys.getswitchinterval()

    async def fails():
        raise KeyError("x")

    with pytest.raises(KeyError):
        run(fails())
    assert sys.getswitchinterval() == before_s


def test_ctrl_c_cancels_main_and_lets_it_clean_up():
    script = """
        import asyncio
        from rollwright.telemetry import run
        async def main():
            print("ready", flush=True)
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0)
                print("cleaned", flush=True)
        try:
            run(main())
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGINT)
        assert child.communicate(timeout=60)[0] == "cleaned\ninterrupted\n"


def test_what_start_up_made_is_out_of_the_collectors_sight():
    async def main():
        return gc.get_freeze_count(), gc.get_threshold()

    before = gc.get_threshold()
    frozen, thresholds = run(main())
    assert frozen > 1000
    assert thresholds == GC_THRESHOLDS
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
