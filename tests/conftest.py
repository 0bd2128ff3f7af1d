"""Fixtures and settings that every room shares."""

import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))
pytest_plugins = ["loopguard", "sharing"]

# For this process and those below it: what there is to verify is on this machine, and one authority is soon read.
os.environ.setdefault("SSL_CERT_FILE", str(Path(__file__).parent / "authority.pem"))

# A shared machine is slow now and then, and that is no defect of the code under test.
_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("rollwright", _COMMON, max_examples=60)
settings.register_profile("soak", _COMMON, max_examples=300)


# A shell that starts this in the background ignores Ctrl+C, nohup ignores a closed terminal, and every process below
# would do so too.
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)


def pytest_addoption(parser):
    parser.addoption("--soak", action="store_true", help="Also run the long tests.")


def pytest_configure(config):
    # Examples are other ones in every run, so what the short run does not try today it tries tomorrow.
    settings.load_profile("soak" if config.getoption("--soak") else "rollwright")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    # What is made here stays to the end, so no pass of the garbage collector need look at it.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config, items):
    if config.getoption("--soak"):
        return
    for item in items:
        if item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.skip(reason="a long test; run it with --soak"))
