"""Warm scripts at Modal: loaded in the box, forked per call."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "warm"))

import in_boxes


@pytest.fixture
def write(tmp_path):
    def written(body):
        path = tmp_path / "a script.py"
        path.write_text(body)
        return path

    return written


async def test_warm_and_cold_agree(box, write):
    await in_boxes.check_agreement(box, write)


async def test_a_script_is_loaded_once_between_resets(box, write):
    await in_boxes.check_one_load(box, write)


async def test_a_late_script_is_ended_with_all_it_started(box, write):
    await in_boxes.check_deadline(box, write)


async def test_a_script_that_may_have_begun_is_not_run_twice(box, write):
    await in_boxes.check_never_twice(box, write)


async def test_a_reset_breaks_off_warm_calls(box, write):
    await in_boxes.check_reset_under_a_call(box, write)
