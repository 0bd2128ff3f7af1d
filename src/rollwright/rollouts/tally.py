"""What an evaluation adds up to: mean reward with its interval, pass@k, tokens, seconds per phase, failures per layer.

One small row per rollout is kept, so memory grows by bytes per rollout and never holds a trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import comb, sqrt

import msgspec

from rollwright.wire import Score, Timing, Trace, Usage

PHASES = ("queue_s", "provision_s", "setup_s", "model_s", "tool_s", "score_s")


class Summary(msgspec.Struct, frozen=True):
    """The result of a run."""

    planned: int
    finished: int
    failed: int
    reward_mean: float | None
    reward_low: float | None
    """The 95% interval, over tasks: rollouts of one task are not independent."""
    reward_high: float | None
    pass_at: dict[str, float]
    scores: dict[str, float]
    """Mean of each named reward and metric."""
    failures: dict[str, int]
    """Failed rollouts by layer."""
    stops: dict[str, int]
    usage: Usage
    phases: dict[str, float]
    """Mean seconds per rollout in each phase."""
    wall_s: float = 0.0


class Tally:
    """Counts finished and failed rollouts. Each key counts once: what failed and finished later has finished."""

    def __init__(self, planned: int, *, pass_threshold: float = 1.0) -> None:
        self.planned = planned
        self._pass_threshold = pass_threshold
        self._rewards: dict[str, list[float]] = {}
        self._score_sums: dict[str, list[float]] = {}
        self._failed: dict[tuple[str, int], str] = {}
        self._stops: Counter[str] = Counter()
        self._phases = dict.fromkeys(PHASES, 0.0)
        self.usage = Usage()
        self.finished = 0
        self.reward_sum = 0.0

    @property
    def failed(self) -> int:
        return len(self._failed)

    @property
    def failures(self) -> dict[str, int]:
        return dict(Counter(self._failed.values()).most_common())

    @property
    def reward_so_far(self) -> float | None:
        return self.reward_sum / self.finished if self.finished else None

    def add(self, trace: Trace) -> None:
        if trace.failure is not None:
            self._failed[trace.key] = trace.failure.layer.value
            return
        self._failed.pop(trace.key, None)
        self.finished += 1
        self.reward_sum += trace.reward
        self._rewards.setdefault(trace.task_id, []).append(trace.reward)
        self._stops[trace.stop.value] += 1
        self.usage += trace.usage
        self._add_scores(trace.scores)
        self._add_phases(trace.timing)

    def _add_scores(self, scores: dict[str, Score]) -> None:
        for name, score in scores.items():
            sums = self._score_sums.setdefault(name, [0.0, 0.0])
            sums[0] += score.value
            sums[1] += 1

    def _add_phases(self, timing: Timing) -> None:
        for phase in PHASES:
            self._phases[phase] += getattr(timing, phase)

    def summary(self, wall_s: float = 0.0) -> Summary:
        mean, low, high = interval(list(self._rewards.values()))
        return Summary(
            planned=self.planned,
            finished=self.finished,
            failed=self.failed,
            reward_mean=mean,
            reward_low=low,
            reward_high=high,
            pass_at=self._pass_at(),
            scores={name: total / count for name, (total, count) in self._score_sums.items()},
            failures=self.failures,
            stops=dict(self._stops),
            usage=self.usage,
            phases={name.removesuffix("_s"): total / max(1, self.finished) for name, total in self._phases.items()},
            wall_s=wall_s,
        )

    def _pass_at(self) -> dict[str, float]:
        """pass@k for k = 1, 2, 4, ... as far as every task has k rollouts."""
        if not self._rewards:
            return {}
        passed = [
            (len(rewards), sum(reward >= self._pass_threshold - 1e-9 for reward in rewards))
            for rewards in self._rewards.values()
        ]
        fewest = min(n for n, _ in passed)
        ks = [2**power for power in range(fewest.bit_length()) if 2**power <= fewest]
        return {str(k): sum(pass_at_k(n, c, k) for n, c in passed) / len(passed) for k in ks}


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that k of n rollouts, drawn without replacement, hold one of the c that passed."""
    return 1.0 - comb(n - c, k) / comb(n, k)


def interval(rewards_by_task: Sequence[Sequence[float]]) -> tuple[float | None, float | None, float | None]:
    """Mean reward and its 95% interval. Tasks are the independent unit; the mean weighs each rollout alike."""
    count = sum(len(rewards) for rewards in rewards_by_task)
    if not count:
        return None, None, None
    mean = sum(map(sum, rewards_by_task)) / count
    tasks = len(rewards_by_task)
    if all(len(rewards) == 1 and rewards[0] in (0.0, 1.0) for rewards in rewards_by_task):
        return mean, *_wilson(mean, count)
    if tasks < 2:
        return mean, None, None
    spread = sum(sum(reward - mean for reward in rewards) ** 2 for rewards in rewards_by_task)
    half = t_quantile(tasks - 1) * sqrt(spread * tasks / (tasks - 1)) / count
    return mean, mean - half, mean + half


def _wilson(share: float, count: int) -> tuple[float, float]:
    """For yes-or-no rewards: an interval that stays within [0, 1] and does not shrink to nothing at the ends."""
    z = 1.959964
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, centre - half), min(1.0, centre + half)


_T_SMALL = (12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912)


def t_quantile(freedom: int) -> float:
    """The 97.5% point of Student's t: from the table for few degrees of freedom, else by its expansion around the
    normal, which is then off by less than 0.001."""
    if freedom <= len(_T_SMALL):
        return _T_SMALL[freedom - 1]
    z = 1.959964
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
