"""What a person chooses about samples holds through the whole loop: errors, filters, advantages, packing."""

from __future__ import annotations

import msgspec

from orchestrator.call_trees import FAILURE, chat
from orchestrator.test_orchestrate import ScriptedServing, orchestrate, settings_for
from rollwright.orchestrator.advantages import EmaBaseline, MaxRl
from rollwright.orchestrator.checkpoints import NAME, Checkpoint
from rollwright.orchestrator.filters import Length, Mode
from rollwright.orchestrator.packing import PackSettings
from rollwright.orchestrator.samples import ErrorPolicy
from rollwright.orchestrator.transports import BatchReceiver
from rollwright.wire import Stop


def some_fail(task: str, attempt: int):
    trace = chat(2, task_id=task, attempt=attempt, reward=attempt % 3)
    return msgspec.structs.replace(trace, failure=FAILURE, stop=Stop.FAILED) if attempt % 4 == 0 else trace


async def test_masked_rollouts_keep_their_place_and_dropped_ones_are_replaced(tmp_path):
    reports = {}
    for errors in ErrorPolicy:
        place = tmp_path / errors
        settings = settings_for(place, errors=errors, batch_size=6, steps=2)
        reports[errors] = await orchestrate(settings, ScriptedServing(some_fail), group_size=4)
        for batch in BatchReceiver(place):
            assert len({(sample.group, sample.attempt) for sample in batch.samples}) == 6
            for sample in batch.samples:
                failed = sample.attempt % 4 == 0
                assert sample.mask.any() != failed
                assert not failed or (errors is ErrorPolicy.MASK and sample.advantage == 0)
    assert reports[ErrorPolicy.MASK].trained == reports[ErrorPolicy.DROP].trained == 12
    assert reports[ErrorPolicy.DROP].failed.keys() == {"engine/EngineUnavailable"}


async def test_a_filter_counts_or_drops_by_its_mode(tmp_path):
    def longer(task: str, attempt: int):
        return chat(1 + attempt % 2, task_id=task, attempt=attempt, reward=attempt % 2)

    for mode in Mode:
        place = tmp_path / mode
        settings = settings_for(place, filters=(Length(max_sampled_tokens=2, mode=mode),), steps=2)
        steps = []
        report = await orchestrate(settings, ScriptedServing(longer), on_step=steps.append, group_size=4)
        attempts = [sample.attempt % 2 for batch in BatchReceiver(place) for sample in batch.samples]
        assert sum(step.caught.get("length", 0) for step in steps) >= 8
        if mode is Mode.ENFORCE:
            assert not any(attempts)
            assert report.dropped["length"] >= 8
        else:
            assert sum(attempts) == 8


async def test_the_chosen_advantage_and_packing_reach_the_trainer(tmp_path):
    def mixed(task: str, attempt: int):
        return chat(1 + attempt, task_id=task, attempt=attempt, reward=attempt % 4 == 0)

    settings = settings_for(tmp_path, advantage=MaxRl(), pack=PackSettings(ranks=2, max_tokens=30), steps=1)
    await orchestrate(settings, ScriptedServing(mixed), group_size=4)
    (batch,) = BatchReceiver(tmp_path)
    for sample in batch.samples:
        assert sample.advantage == (-1.0 if sample.attempt % 4 else 3.0)
    both = [batch.micro_batches(rank) for rank in range(2)]
    assert len(both[0]) == len(both[1])
    assert sum(len(micro) for micros in both for micro in micros) == len(batch.samples)
    assert all(sum(len(sample.ids) for sample in micro) <= 30 for micros in both for micro in micros)


async def test_a_moving_baseline_is_in_the_checkpoint(tmp_path):
    settings = settings_for(tmp_path, advantage=EmaBaseline(decay=0.5), steps=1)
    await orchestrate(settings, ScriptedServing(lambda task, attempt: chat(task_id=task, attempt=attempt, reward=3.0)))
    content = (tmp_path / NAME).read_bytes()
    assert msgspec.msgpack.decode(content, type=Checkpoint).plan.baselines == {"": 3.0}
