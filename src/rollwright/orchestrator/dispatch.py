"""Which group runs next, and when a step has what it needs. Plain functions; loop.py does the waiting."""

from __future__ import annotations

import numpy as np

from rollwright.wire import RollwrightError

from .groups import Accounts, Group, Ticket, lost_group


class GroupsFailed(RollwrightError):
    """Too many groups of one step gave nothing to train on."""


class Cursor:
    """The order of the tasks: all of them once per epoch, shuffled anew for each. (seed, number) says it all, so a run
    can go on from a number alone."""

    def __init__(self, tasks: int, *, seed: int, group_size: int, number: int = 0) -> None:
        self.number = number
        self._tasks = tasks
        self._seed = seed
        self._group_size = group_size
        self._epoch = -1
        self._order: list[int] = []

    def next(self) -> Ticket:
        epoch, position = divmod(self.number, self._tasks)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self._seed, epoch]).permutation(self._tasks).tolist()
        # A task is dispatched once per epoch, so this numbers its attempts without a gap and without repeating one.
        ticket = Ticket(self.number, self._order[position], epoch * self._group_size)
        self.number += 1
        return ticket


class Step:
    """Collects the groups of one batch. A group without samples is replaced by the next task, within a bound."""

    def __init__(
        self, number: int, cursor: Cursor, *, groups: int, group_size: int, running: int, replaced: int
    ) -> None:
        self.number = number
        self.accounts = Accounts()
        self.rewards: list[float] = []
        self._cursor = cursor
        self._wanted = groups
        self._group_size = group_size
        self._max_running = running
        self._max_replaced = replaced
        self._replaced = 0
        self._running: dict[int, Ticket] = {}
        self._groups: list[Group] = []

    def __repr__(self) -> str:
        return (
            f"<Step {self.number}: {len(self._groups)} of {self._wanted} groups, {len(self._running)} running, "
            f"{self._replaced} replaced>"
        )

    @property
    def settled(self) -> bool:
        return len(self._groups) == self._wanted or self._exhausted

    @property
    def _exhausted(self) -> bool:
        return self._replaced > self._max_replaced

    def launch(self) -> list[Ticket]:
        """The groups to start now."""
        missing = self._wanted - len(self._groups) - len(self._running)
        room = self._max_running - len(self._running)
        tickets = [self._cursor.next() for _ in range(min(missing, room))]
        self._running.update((ticket.number, ticket) for ticket in tickets)
        self.accounts.dispatched += len(tickets) * self._group_size
        return tickets

    def arrive(self, group: Group) -> None:
        del self._running[group.ticket.number]
        self.accounts.settle(group.outcomes)
        self.rewards.extend(group.rewards)
        if group.samples:
            self._groups.append(group)
        else:
            self._replaced += 1

    def abandon(self) -> None:
        """Settle the books for groups that are cancelled."""
        for ticket in self._running.values():
            self.accounts.settle(lost_group(ticket, self._group_size, "cancelled").outcomes)
        self._running.clear()

    def groups(self) -> list[Group]:
        """What the step collected, in the order of dispatch."""
        if self._exhausted:
            reasons = {**self.accounts.failed, **self.accounts.dropped}
            told = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
            raise GroupsFailed(
                f"step {self.number} gave up after {self._replaced} groups with nothing to train on "
                f"(rollouts: {told}); mend the cause, or raise max_replaced_groups"
            )
        return sorted(self._groups, key=lambda group: group.ticket.number)
