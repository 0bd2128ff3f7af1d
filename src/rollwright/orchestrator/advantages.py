"""How much better a rollout did than its group. Numbers in, numbers out; knows no traces and no tokens."""

from __future__ import annotations

import numpy as np

from rollwright.wire.arrays import Floats, Mask


def group_centred(rewards_G: Floats, finished_G: Mask, *, divide_by_std: bool = False) -> Floats:  # noqa: N803
    """Each finished member's reward minus the mean of the finished ones; 0 for the others, who neither set the mean
    nor get an advantage. A lone member and a group of equals get exactly 0, also where the mean is off by a rounding
    and the deviation is a rounding as well."""
    advantages_G = np.zeros(len(rewards_G), np.float64)  # noqa: N806
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
