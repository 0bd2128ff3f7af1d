"""What is shown of a run of the orchestrator."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rollwright.cli.dashboard import Dashboard, eval_line, sparks, step_line
from rollwright.orchestrator import EvalReport, OrchestrateSettings, Orchestrator, Source, SourcePlan, StepReport
from rollwright.orchestrator.transports import FileSender
from rollwright.telemetry import LoopLagMonitor

STEP = StepReport(
    step=3, policy_version=2, dispatched=16, trained=8, dropped={"stale": 2}, failed={"engine/Away": 1}, caught={},
    samples=9, tokens=1234, trained_tokens=500, tokens_per_s=100.0, reward_mean=0.25, reward_std=0.1,
    finished_reward_mean=None, advantage_std=0.5, staleness_mean=1.5, staleness_max=3, in_flight=4, ready=2,
    buffered_bytes=2**20, landing_bytes=0, concurrency=64, batch_bytes=99, collect_s=2.0, ship_s=0.5,
)  # fmt: skip


def test_sparks_go_from_the_lowest_to_the_highest() -> None:
    assert sparks([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparks([2.0, 2.0]) == "▁▁"


def test_a_step_and_an_evaluation_are_one_line_each() -> None:
    line = step_line(STEP)
    for words in ("step 3", "reward 0.250", "8 trained, 3 not", "staleness 1.50", "2.00 s + 0.50 s to ship"):
        assert words in line
    told = eval_line(EvalReport("eval aime24", 20, 64, 3, 0.125, 61.0))
    assert told == "eval aime24 at version 20: reward 0.125 over 64 rollouts, 3 failed in 1 min 01 s"


async def test_the_panel_shows_where_the_run_stands(tmp_path: Path) -> None:
    sender = FileSender(tmp_path)
    settings = OrchestrateSettings(output=str(tmp_path), steps=9)
    source = Source(SourcePlan(name="train", tasks=1), None, ["task"])  # type: ignore[arg-type] - nobody runs it
    async with LoopLagMonitor() as monitor:
        board = Dashboard("sums with m", monitor)
        board.watch(Orchestrator(settings, [source], sender=sender))
        rows = dict(board.panel().rows)
        assert rows["step"] == "0 of 9, policy version 0"
        assert rows["reward"] == "-"
        board.step(STEP)
        board.step(msgspec.structs.replace(STEP, reward_mean=0.75))
        board.evaluated(EvalReport("eval e", 2, 4, 0, 0.5, 1.0))
        panel = board.panel()
    rows = dict(panel.rows)
    assert rows["reward"] == "0.750  ▁█"
    assert rows["staleness"] == "1.50 on average, 3 at most"
    assert rows["eval e"] == "0.500 at version 2"
    assert (panel.done, panel.planned) == (0, 9)
    await sender.close()
