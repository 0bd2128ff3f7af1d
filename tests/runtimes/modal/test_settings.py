"""Settings of the kind, and what a person is told who lacks its SDK. No SDK is needed here."""

import subprocess
import sys

import pytest

from rollwright.runtimes import RUNTIME_KINDS, make_runtime, runtime_config
from rollwright.runtimes.modal import ModalConfig, vendor
from rollwright.wire import UsageError


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpu": -1.0},
        {"memory_mb": -1},
        {"lifetime_s": 0},
        {"lifetime_s": 86_401},
        {"idle_timeout_s": -1},
        {"ports": (0,)},
        {"ports": (70_000,)},
        {"ports": (80,), "block_network": True},
        {"app": ""},
        {"app": "with a space"},
        {"directory": "relative"},
        {"directory": "/"},
        {"watched": ("etc",)},
        {"start_timeout_s": 0.0},
        {"creates_per_s": 0.0},
        {"output_limit": -1},
        {"read_limit": -1},
    ],
)
def test_wrong_settings_are_refused_by_name(wrong):
    with pytest.raises(UsageError) as refusal:
        ModalConfig(**wrong)
    assert "runtime." in str(refusal.value) or "box" in str(refusal.value)


def test_the_kind_is_known_by_name():
    assert RUNTIME_KINDS["modal"] is ModalConfig
    config = runtime_config("modal", {"app": "mine", "ports": [80], "lifetime_s": 60})
    assert config == ModalConfig(app="mine", ports=(80,), lifetime_s=60)
    assert config.box_lifetime_s == 60


def test_without_the_sdk_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(vendor.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'rollwright\[modal\]'"):
        make_runtime(ModalConfig())


def test_knowing_the_kind_does_not_import_its_sdk():
    look = "import sys, rollwright.runtimes, rollwright.runtimes.modal.runtime; print('modal' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.strip() == "False"
