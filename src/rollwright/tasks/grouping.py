"""What becomes of a group when not all of it succeeds: a setting of the verbs, kept where opening it costs nothing."""

from __future__ import annotations

from typing import Literal

import msgspec


class GroupSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What becomes of a group that is scored together when one of its rollouts fails."""

    partial: Literal["score", "drop", "wait"] = "score"
    """score: those that finished are scored without it. drop: nobody is scored; those that finished fail as well, and
    name it. wait: it runs again, and the group waits for it; if it still fails, as drop."""
    retries: int = 2
    """How often a rollout runs again under `wait`. One whose own task is broken does not."""
