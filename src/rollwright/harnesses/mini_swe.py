"""mini-swe-agent, which speaks chat completions. It is a package of Python, so it runs as a script that depends on it:
`scripts/mini_swe.py` starts the package's own agent, with its own prompts and its own shell."""

from __future__ import annotations

import json
from pathlib import Path

from rollwright.runtimes import Runtime
from rollwright.tasks import Task
from rollwright.wire import UsageError

from .bash import outcome_of
from .contract import Door
from .programs import FOREVER_S, HarnessConfig, Outcome, ProgramHarness, asked

SCRIPT = Path(__file__).parent / "scripts" / "mini_swe.py"
_QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "MSWEA_SILENT_STARTUP": "1",
    # The engine's client has tried again by itself before the program hears of an error.
    "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
}


class MiniSweConfig(HarnessConfig, frozen=True, kw_only=True, tag_field="kind", tag="mini-swe-agent"):
    """mini-swe-agent with its own prompts."""

    step_limit: int = 0
    """Model calls after which it stops by itself; 0 is no limit. limits.max_turns counts for every harness."""
    command_timeout_s: int = 120
    """Wall time of one command."""

    def __post_init__(self) -> None:
        if self.step_limit < 0 or self.command_timeout_s < 1:
            raise UsageError("harness.step_limit must be 0 or more and harness.command_timeout_s 1 or more")


class MiniSweHarness(ProgramHarness):
    kind = "mini-swe-agent"

    def __init__(self, config: MiniSweConfig | None = None) -> None:
        self.config = config or MiniSweConfig()

    async def drive(self, runtime: Runtime, door: Door, model: str, task: Task) -> Outcome:
        system, prompt = asked(task)
        told = {
            "prompt": f"{system}\n\n{prompt}" if system else prompt,
            "model": model,
            "step_limit": self.config.step_limit,
            "command_timeout_s": self.config.command_timeout_s,
        }
        result = await runtime.run_script(
            SCRIPT,
            env={"ROLLWRIGHT_URL": door.url, "ROLLWRIGHT_KEY": door.key, **_QUIET},
            stdin=json.dumps(told).encode(),
            timeout_s=FOREVER_S,
            takes_slot=False,
        )
        return outcome_of(result)
