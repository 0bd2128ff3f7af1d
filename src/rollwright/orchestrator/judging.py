"""What becomes of the rollouts of a group that came back, by their advantages and the filters. It is work of the size
of the group, so it is done on the loop, where what an advantage remembers has one order."""

from __future__ import annotations

import numpy as np

from .advantages import Advantage
from .buffer import Ready
from .filters import Filters
from .groups import Arrival, Fate, Landed, Outcome


class Judge:
    def __init__(self, advantage: Advantage, filters: Filters) -> None:
        self.caught: dict[str, int] = {}
        """Rollouts that each filter caught, removed or not."""
        self._advantage = advantage
        self._filters = filters

    @property
    def baselines(self) -> dict[str, float]:
        return self._advantage.state()

    def restore(self, caught: dict[str, int], baselines: dict[str, float]) -> None:
        self.caught = dict(caught)
        self._advantage.restore(baselines)

    def fates(self, landed: Landed) -> list[Ready | Outcome]:
        arrivals = landed.arrivals
        rewards_G = np.array([arrival.reward for arrival in arrivals], np.float64)  # noqa: N806
        finished_G = np.array([arrival.finished for arrival in arrivals], np.bool_)  # noqa: N806
        tokens_G = np.array([arrival.tokens for arrival in arrivals], np.int64)  # noqa: N806
        agents = [arrival.agent for arrival in arrivals]
        advantages_G = self._advantage(rewards_G, finished_G, agents, tokens_G)  # noqa: N806
        flags = self._filters.group.flags(advantages_G, finished_G)
        return [
            self._fate(landed.ticket.number, member, arrival, float(advantages_G[member]), flags[member])
            for member, arrival in enumerate(arrivals)
        ]

    def _fate(
        self, group: int, member: int, arrival: Arrival, advantage: float, flags: tuple[str, ...]
    ) -> Ready | Outcome:
        if arrival.outcome.fate is not Fate.TRAINED:
            return arrival.outcome
        caught = (*arrival.flags, *flags)
        for name in caught:
            self.caught[name] = self.caught.get(name, 0) + 1
        enforced = [name for name in caught if name in self._filters.enforced]
        return Outcome(Fate.DROPPED, enforced[0]) if enforced else Ready(group, member, arrival, advantage)
