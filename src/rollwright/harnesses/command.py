"""Any program that the box has: words, variables and stdin with the names of what it has to know filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rollwright.runtimes import Runtime
from rollwright.tasks import Task
from rollwright.wire import HarnessError, UsageError

from .agents import OUTPUT_LIMIT
from .contract import Door
from .programs import FOREVER_S, HarnessConfig, Outcome, ProgramHarness, asked, trouble_of

NAMES = ("base_url", "key", "model", "prompt", "system")
_PLACE = re.compile(r"\{(" + "|".join(NAMES) + r")\}")
_USUAL = {
    "OPENAI_BASE_URL": "{base_url}/v1",
    "OPENAI_API_KEY": "{key}",
    "ANTHROPIC_BASE_URL": "{base_url}",
    "ANTHROPIC_API_KEY": "{key}",
}
"""What the vendors' own SDKs look for, so that a program which uses one needs no word about its model."""


class CommandConfig(HarnessConfig, frozen=True, kw_only=True, tag_field="kind", tag="command"):
    """Any program. {base_url}, {model}, {prompt} and {system} are filled in, and {key} in variables and stdin."""

    argv: tuple[str, ...] = ()
    """The program and its words. {base_url} is the root of the host: some SDKs want /v1 behind it."""
    env: dict[str, str] = {}
    """Variables beyond OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY."""
    stdin: str = "{prompt}"
    """What it reads."""
    cwd: str = ""
    """Where it begins, within the workspace."""

    def __post_init__(self) -> None:
        if any("{key}" in word for word in self.argv):
            raise UsageError(
                "harness.argv holds {key}, and every user of a machine can read command lines; "
                "put it into a variable: harness.env = {MY_KEY = '{key}'}"
            )


class CommandHarness(ProgramHarness):
    kind = "command"

    def __init__(self, config: CommandConfig) -> None:
        if not config.argv:
            raise UsageError("the command harness needs a program: set harness.argv")
        self.config = config

    async def drive(self, runtime: Runtime, door: Door, model: str, task: Task) -> Outcome:
        system, prompt = asked(task)
        known = {"base_url": door.url, "key": door.key, "model": model, "prompt": prompt, "system": system}
        config = self.config
        words = [filled(word, known) for word in config.argv]
        if any("\0" in word for word in words):
            raise HarnessError(f"the prompt of task {task.id!r} holds a NUL byte, which no command line can")
        result = await runtime.run(
            words,
            env={name: filled(value, known) for name, value in {**_USUAL, **config.env}.items()},
            stdin=filled(config.stdin, known).encode(),
            cwd=config.cwd,
            timeout_s=FOREVER_S,
            output_limit=OUTPUT_LIMIT,
        )
        return Outcome(trouble=trouble_of(result))


def filled(text: str, known: Mapping[str, str]) -> str:
    """`text` with the known names filled in, in one pass: what is filled in is not looked at again."""
    return _PLACE.sub(lambda found: known[found[1]], text)
