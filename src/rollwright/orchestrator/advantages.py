"""How much better a rollout did than it was expected to. Numbers in, numbers out; knows no traces and no tokens.

Each kind is its own settings: a frozen struct, chosen by `kind`. An advantage sees one group at a time, in the order
in which groups come back, on the loop: the work is of the size of the group. What it remembers is in the checkpoint.

A rollout that is not finished has no reward that means something: it sets no baseline and gets 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
import numpy as np

from rollwright.wire import RollwrightError, UsageError
from rollwright.wire.arrays import Floats, Ints, Mask

from .plugins import load_plugin

# ruff: noqa: N803, N806 - the suffix of an array names its axis: G is the group.


class Advantage(Protocol):
    """Of each member of a group. `state` is what it remembers of earlier groups, for the checkpoint."""

    def __call__(self, rewards_G: Floats, finished_G: Mask, agents_G: Sequence[str], tokens_G: Ints) -> Floats: ...

    def state(self) -> dict[str, float]: ...

    def restore(self, state: dict[str, float]) -> None: ...


class Grpo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="grpo"):
    """The reward minus the mean of the group."""

    divide_by_std: bool = False
    """Divide by the standard deviation of the group's rewards, so that easy and hard tasks weigh the same."""


class LeaveOneOut(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="leave_one_out"
):
    """The reward minus the mean of the others in the group: a baseline that the rollout itself has no part in."""


class MaxRl(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="maxrl"):
    """The reward minus the mean of the group, divided by that mean (Maximum Likelihood Reinforcement Learning,
    arXiv:2602.02710). With rewards of 0 and 1 this is an estimate of the gradient of log p, p being the chance to
    succeed, where the plain mean gives that of p: a task with few successes weighs 1/p as much. A group without a
    success tells nothing and gets 0. Rewards below 0 have no such meaning and are refused."""


class EmaBaseline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="ema"):
    """The reward minus a moving average of what the same agent got in earlier groups, so that groups of one rollout,
    and players with different chances, have a baseline. An agent's first group is measured by its own mean."""

    decay: float = 0.9
    """How much of the average stays when a group comes in."""

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise UsageError(f"decay is {self.decay}; set it to 0 or more and less than 1")


class CustomAdvantage(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="custom"
):
    """Code of the user's: a function of (rewards_G, finished_G, agents_G, tokens_G), or a class whose instances are
    called so and may have `state` and `restore`. `options` go to the function, or make the instance."""

    path: str
    """`module:name`."""
    options: dict[str, Any] = {}
    """Passed by name."""


AdvantageConfig = Grpo | LeaveOneOut | MaxRl | EmaBaseline | CustomAdvantage
ADVANTAGE_KINDS: dict[str, type[msgspec.Struct]] = {
    str(kind.__struct_config__.tag): kind for kind in (Grpo, LeaveOneOut, MaxRl, EmaBaseline, CustomAdvantage)
}


def make_advantage(config: AdvantageConfig) -> Advantage:
    match config:
        case Grpo(divide_by_std=divide):
            return _Stateless(partial(group_centred, divide_by_std=divide))
        case LeaveOneOut():
            return _Stateless(left_one_out)
        case MaxRl():
            return _Stateless(per_mean)
        case EmaBaseline(decay=decay):
            return _MovingBaselines(decay)
        case CustomAdvantage():
            return _Custom(config)


def group_centred(rewards_G: Floats, finished_G: Mask, *, divide_by_std: bool = False) -> Floats:
    """Each finished member's reward minus the mean of the finished ones; 0 for the others, who neither set the mean
    nor get an advantage. A lone member and a group of equals get exactly 0, also where the mean is off by a rounding
    and the deviation is a rounding as well."""
    advantages_G = np.zeros(len(rewards_G), np.float64)
    rewards = rewards_G[finished_G]
    if len(rewards) < 2 or rewards.min() == rewards.max():
        return advantages_G
    centred = rewards - rewards.mean()
    if divide_by_std:
        # Scaled first: the squares of very small rewards are 0.
        centred /= np.abs(centred).max()
        centred /= centred.std()
    advantages_G[finished_G] = centred
    return advantages_G


def left_one_out(rewards_G: Floats, finished_G: Mask) -> Floats:
    # r - (sum - r) / (n - 1) is n / (n - 1) times r - sum / n.
    members = int(np.count_nonzero(finished_G))
    return group_centred(rewards_G, finished_G) * (members / max(members - 1, 1))


def per_mean(rewards_G: Floats, finished_G: Mask) -> Floats:
    rewards = rewards_G[finished_G]
    if (rewards < 0).any():
        raise UsageError(f"maxrl needs rewards of 0 or more, and one is {rewards.min():g}; choose another advantage")
    centred_G = group_centred(rewards_G, finished_G)
    # A group that is not all equal, with nothing below 0, has a mean above 0.
    return centred_G / rewards.mean() if centred_G.any() else centred_G


class _Stateless:
    def __init__(self, formula: Callable[[Floats, Mask], Floats]) -> None:
        self._formula = formula

    def __call__(self, rewards_G: Floats, finished_G: Mask, agents_G: Sequence[str], tokens_G: Ints) -> Floats:
        return self._formula(rewards_G, finished_G)

    def state(self) -> dict[str, float]:
        return {}

    def restore(self, state: dict[str, float]) -> None:
        """Nothing is remembered."""


class _MovingBaselines:
    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._baselines: dict[str, float] = {}

    def __call__(self, rewards_G: Floats, finished_G: Mask, agents_G: Sequence[str], tokens_G: Ints) -> Floats:
        advantages_G = np.zeros(len(rewards_G), np.float64)
        for agent in dict.fromkeys(agents_G):
            members_G = np.fromiter((name == agent for name in agents_G), np.bool_, len(agents_G)) & finished_G
            if members_G.any():
                mean = float(rewards_G[members_G].mean())
                baseline = self._baselines.get(agent, mean)
                advantages_G[members_G] = rewards_G[members_G] - baseline
                self._baselines[agent] = self._decay * baseline + (1 - self._decay) * mean
        return advantages_G

    def state(self) -> dict[str, float]:
        return dict(self._baselines)

    def restore(self, state: dict[str, float]) -> None:
        self._baselines = dict(state)


class _Custom:
    """The border to the user's code: whatever it raises or returns is checked here."""

    def __init__(self, config: CustomAdvantage) -> None:
        self._name = config.path
        plugin = load_plugin(config.path, "advantage")
        if not isinstance(plugin, type):
            self._plugin: Any = partial(plugin, **config.options)
            return
        try:
            self._plugin = plugin(**config.options)
        except Exception as error:
            raise UsageError(f"advantage {config.path!r} could not be made: {error}") from error

    def __call__(self, rewards_G: Floats, finished_G: Mask, agents_G: Sequence[str], tokens_G: Ints) -> Floats:
        try:
            advantages_G = np.asarray(self._plugin(rewards_G, finished_G, agents_G, tokens_G), np.float64)
        except Exception as error:
            raise RollwrightError(f"advantage {self._name!r} raised {type(error).__name__}: {error}") from error
        if advantages_G.shape != rewards_G.shape or not np.isfinite(advantages_G).all():
            raise RollwrightError(
                f"advantage {self._name!r} must give {len(rewards_G)} finite numbers, "
                f"and gave shape {advantages_G.shape}: {advantages_G.tolist()}"
            )
        return np.where(finished_G, advantages_G, 0.0)

    def state(self) -> dict[str, float]:
        remembered: dict[str, float] = self._plugin.state() if hasattr(self._plugin, "state") else {}
        return dict(remembered)

    def restore(self, state: dict[str, float]) -> None:
        if hasattr(self._plugin, "restore"):
            self._plugin.restore(dict(state))
