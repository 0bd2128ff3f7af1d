"""Memory is flat: 5,000 rollouts end within 10% of the RSS after the first 500, and little of each is kept."""

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("flat_memory.py")
KEPT_BYTES, KEPT_BLOCKS = 512, 5
"""Of each rollout: that it is done, by its task and attempt, and the room that a growing set takes beforehand."""


def test_five_thousand_rollouts_stay_flat():
    # In a process of its own: this one's memory is that of hundreds of other tests.
    run = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, timeout=300, check=True)
    told = json.loads(run.stdout)
    first, half, last = told["points"]
    assert [point["finished"] for point in (first, half, last)] == [500, 2500, 5000]
    assert told["reward_mean"] == 1.0
    assert last["rss"] <= 1.10 * first["rss"], told
    assert last["lent"] - half["lent"] <= KEPT_BYTES * 2500, told
    assert last["blocks"] - half["blocks"] <= KEPT_BLOCKS * 2500, told
