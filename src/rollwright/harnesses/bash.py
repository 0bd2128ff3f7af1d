"""A small agent of our own with one tool, bash, inside the box. The program is `scripts/bash_agent.py`.

It is a script, so it starts from the same warm process as scoring scripts: a rollout costs a fork, no interpreter.
"""

from __future__ import annotations

import json
from pathlib import Path

from rollwright.runtimes import ExecResult, Runtime
from rollwright.tasks import Task
from rollwright.wire import HarnessError, Stop, UsageError

from .contract import Door
from .programs import FOREVER_S, HarnessConfig, Outcome, ProgramHarness, last_words, spoken, trouble_of
from .shells import bash_in

SCRIPT = Path(__file__).parent / "scripts" / "bash_agent.py"


class BashConfig(HarnessConfig, frozen=True, kw_only=True, tag_field="kind", tag="bash"):
    """An agent of our own with one tool, bash, beside those of the task."""

    max_turns: int = 200
    """Model calls after which the agent stops by itself. limits.max_turns counts for every harness."""
    output_limit: int = 16_000
    """Bytes of a command's output that the model is shown: the first half of them and the last."""
    command_timeout_s: float = 120.0
    """Wall time of one command; it is ended with its children beyond it."""
    call_timeout_s: float = 3600.0
    """Longest silence of the model."""

    def __post_init__(self) -> None:
        for name in ("max_turns", "output_limit", "command_timeout_s", "call_timeout_s"):
            if getattr(self, name) <= 0:
                raise UsageError(f"harness.{name} is {getattr(self, name)}; set it above 0")


class BashHarness(ProgramHarness):
    kind = "bash"
    takes_tools = True

    def __init__(self, config: BashConfig | None = None) -> None:
        self.config = config or BashConfig()

    async def drive(self, runtime: Runtime, door: Door, model: str, task: Task) -> Outcome:
        config = self.config
        told = {
            "messages": [{"role": role, "content": text} for role, text in spoken(task)],
            "model": model,
            "max_turns": config.max_turns,
            "output_limit": config.output_limit,
            "command_timeout_s": config.command_timeout_s,
            "call_timeout_s": config.call_timeout_s,
        }
        env = {"ROLLWRIGHT_URL": door.url, "ROLLWRIGHT_KEY": door.key}
        if door.tools_url:
            env |= {"ROLLWRIGHT_TOOLS_URL": door.tools_url, "ROLLWRIGHT_TOOLS_KEY": door.tools_key}
        result = await runtime.run_script(
            SCRIPT,
            env=env | await bash_in(runtime),
            stdin=json.dumps(told).encode(),
            timeout_s=FOREVER_S,
            warm=True,
            takes_slot=False,
        )
        return outcome_of(result)


def outcome_of(result: ExecResult) -> Outcome:
    """What our own scripts say in their last line."""
    if not result.ok:
        return Outcome(trouble=trouble_of(result))
    try:
        told = json.loads(result.stdout.splitlines()[-1])
        ended, why = str(told["ended"]), str(told.get("why", ""))
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise HarnessError(f"the agent did not say how it ended; {last_words(result)}") from error
    if ended == "turns":
        return Outcome(Stop.TURNS_SPENT)
    return Outcome(trouble="" if ended == "finished" else f"{ended}: {why}")
