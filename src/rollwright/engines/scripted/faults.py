"""Which requests go wrong. How each kind goes wrong is played by the server."""

from __future__ import annotations

from .config import Fault, ScriptedConfig
from .conversations import draw


class FaultPlan:
    """The first requests follow the script in order of arrival. Later ones draw from the conversation and how often it
    came, so a retried request draws anew, and the order of arrival does not matter."""

    def __init__(self, config: ScriptedConfig) -> None:
        self._config = config
        self._arrived = 0

    def clear(self) -> None:
        self._arrived = 0

    def next(self, conversation: bytes, came: int) -> Fault:
        place = self._arrived
        self._arrived += 1
        if place < len(self._config.fault_script):
            return self._config.fault_script[place]
        if not self._config.faults:
            return Fault.NONE
        chance = draw(self._config.seed, "fault", conversation, came).random()
        for fault, probability in sorted(self._config.faults.items()):
            if chance < probability:
                return fault
            chance -= probability
        return Fault.NONE
