"""Tests that need the same costly thing run in one process, and what waits longest begins."""

import pytest

from sharing import rank, unit

CONTAINERS = "tests/runtimes/docker/test_box.py::test_a"


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        (CONTAINERS, "tests/runtimes/pool/test_real_boxes.py::test_b[docker]", True),
        (CONTAINERS, "tests/runtimes/pool/test_real_boxes.py::test_b[sandbox]", False),
        ("tests/dialects/test_sdks.py::test_a", "tests/intercept/test_retries.py::test_the_openai_sdk_waits", True),
        ("tests/dialects/test_sdks.py::test_a", "tests/intercept/test_retries.py::test_a", False),
        ("tests/runtimes/modal/test_warm.py::test_a", "tests/runtimes/pool/test_real_boxes.py::test_b[modal]", True),
        ("tests/runtimes/modal/test_warm.py::test_a", "tests/runtimes/prime/test_warm.py::test_a", False),
        ("tests/renderers/test_parity.py::test_a[Qwen-Qwen3-0.6B]", "tests/renderers/test_pool.py::test_b", True),
        ("tests/renderers/test_parity.py::test_a[nemotron_3_nano]", "tests/renderers/test_pool.py::test_b", True),
        ("tests/renderers/test_parity.py::test_a[qwen3_6]", "tests/renderers/test_pool.py::test_b", False),
        ("tests/renderers/test_parity.py::test_a[GLM-4.6]", "tests/renderers/test_parity.py::test_a[glm-5]", False),
        ("tests/wire/test_codec.py::test_a", "tests/wire/test_codec.py::test_b", False),
    ],
)
def test_what_is_shared_is_one_unit(one, other, together):
    assert (unit(one) == unit(other)) is together


def test_long_ones_begin():
    wanted = [
        CONTAINERS,
        "tests/e2e/test_long_run.py::test_a",
        "tests/serve/ray/test_cluster.py::test_a",
        "tests/renderers/test_pool.py::test_a",
        "tests/cli/test_eval.py::test_a",
    ]
    assert sorted(sorted(wanted), key=rank) == wanted
