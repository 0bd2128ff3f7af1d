"""What all ways to a trainer share: how much may wait for it, and what its end can be asked for.

The orchestrator's end is `TrainingBatchSender` of orchestrator/contracts.py.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from rollwright.orchestrator.batches import Batch
from rollwright.orchestrator.contracts import PolicyVersion
from rollwright.wire import UsageError


class Window(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much may lie ready for a trainer that has not acked it. A single batch of any size always may."""

    batches: int = 1024
    bytes: int = 2**40

    def __post_init__(self) -> None:
        if self.batches < 1 or self.bytes < 1:
            raise UsageError("a window holds at least 1 batch and 1 byte")

    def has_room(self, batches: int, bytes: int) -> bool:
        """Whether one more fits behind `batches` of `bytes`. The bound is passed by less than one batch."""
        return batches < self.batches and bytes < self.bytes


class Feed(Protocol):
    """The trainer's end of one way. It blocks, and is used by one thread."""

    def acked(self, within_s: float) -> int | None:
        """The newest acked step; None when it could not be learned in time."""
        ...

    def fetch(self, step: int, within_s: float) -> Batch | None:
        """The batch of `step`; None if it is not there yet. TimeoutError when that is not known, or it has not come
        whole, in time; what has come of it waits for the next call."""
        ...

    def ack(self, step: int, within_s: float) -> bool:
        """True when the ack is on record, and False when that is not known in time."""
        ...

    def publish(self, policy: PolicyVersion, within_s: float) -> bool:
        """True when the policy version is on record, and False when that is not known in time."""
        ...

    def close(self) -> None: ...
