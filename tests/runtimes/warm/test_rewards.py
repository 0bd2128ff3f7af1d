"""The verifier of the mathematics sets gives one verdict, however warm, on every problem and on malformed answers."""

import asyncio
import json
from importlib import resources

import pytest

from rollwright.runtimes import SubprocessRuntime
from rollwright.runtimes.provision import provision
from rollwright.runtimes.warm import keeper
from rollwright.tasks.builtin.answers import VERIFIER
from rollwright.wire import RuntimeFault

STYLES = {"gsm8k": "number", "aime24": "boxed", "math": "boxed"}
MALFORMED = [
    "", " ", "\\boxed{", "\\boxed{}", "#### ", "#### ####", "}{", "\\frac{1}{", "\x01\x02", "é漢字\U0001f600", "1e999",
    "\\boxed{\\frac{1}{0}}", "-", "1,2,3", "\\boxed{\\boxed{1}}", "None", "#### 1,00", "\\sqrt{", "\n" * 50, "(" * 40,
]  # fmt: skip


def _rows(name):
    path = resources.files("rollwright.tasks.builtin") / "data" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def _questions():
    """Every problem with its solution, a wrong answer and a malformed one."""
    asked = []
    for name, style in STYLES.items():
        for index, row in enumerate(_rows(name)):
            gold = str(row["answer"]).rpartition("####")[2].strip()
            right = row.get("solution") or f"The answer is $\\boxed{{{gold}}}$."
            answers = (right, f"So \\boxed{{{gold}7}}", MALFORMED[index % len(MALFORMED)])
            asked += [[style, gold, said] for said in answers]
    return [*asked, ["number", "no number", "1"], ["boxed"], ["number", "5", "5", "6"]]


async def test_rewards_are_the_same_warm_cold_and_shared(monkeypatch, counted):
    monkeypatch.delenv("ROLLWRIGHT_CACHE_DIR", raising=False)
    try:
        await provision(VERIFIER, timeout_s=120)
    except RuntimeFault as error:
        pytest.skip(f"math-verify cannot be had here: {error}")
    asked = _questions()
    async with SubprocessRuntime() as box:

        async def ask(words, warm):
            result = await box.run_script(VERIFIER, words, timeout_s=120, warm=warm)
            return result.ending, result.exit_code, result.stdout, result.stderr

        try:
            forked = await asyncio.gather(*(ask(words, True) for words in asked))
            shared = await asyncio.gather(*(ask(words, "shared") for words in asked[:-3]))
            sample = [*range(0, len(asked), len(asked) // 6), len(asked) - 3, len(asked) - 2, len(asked) - 1]
            cold = [await ask(asked[index], False) for index in sample]
        finally:
            await keeper().close()
    assert counted.forked == len(asked)
    assert shared == forked[:-3]
    assert cold == [forked[index] for index in sample]
    assert {verdict[2] for verdict in forked[:-3]} == {b"1.0\n", b"0.0\n"}
