"""Which group runs next, what becomes of those that came back, and when a batch is whole.

Plain synchronous code that knows neither a clock nor an array: loop.py carries its decisions out, a simulator drives
the same code through years of virtual time, and `snapshot` is all that a checkpoint needs.

Steps count from 1, policy versions from 0: version v is what training on the batches up to v has made, so the batch of
step k is trained by version k - 1. With a trainer to follow, work is launched for the steps up to version + 1 + lag and
no further, which is why no finished batch waits for a version with rollouts piling up behind it. What is older than
`max_staleness` versions when its batch would be trained is cancelled, dropped or withheld, and never shipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rollwright.wire import UsageError

from .advantages import Advantage
from .buffer import Buffer, Ready, whole_batch
from .filters import Filters
from .groups import Accounts, Fate, Landed, Outcome, Ticket
from .judging import Judge
from .plans import GROUP_STALE, RUN_ENDED, STALE, Cut, GroupsFailed, Pick, PlanSettings, Snapshot, StalePolicy
from .sources import SourcePlan, Sources


class Planner:
    def __init__(
        self,
        settings: PlanSettings,
        plans: Sequence[SourcePlan],
        advantage: Advantage,
        filters: Filters,
        snapshot: Snapshot | None = None,
    ) -> None:
        self.settings = settings
        self.step = 0
        """The last step that was cut."""
        self.version = 0
        self.in_flight = 0
        """Rollouts that are running."""
        self.accounts = Accounts()
        self._sources = Sources(plans, settings.seed, snapshot.sources if snapshot else None)
        self._judge = Judge(advantage, filters)
        self._running: dict[int, Ticket] = {}
        self._again: list[Ticket] = []
        """Dispatched by an earlier life of this run, and not come back."""
        self._buffer = Buffer()
        self._shipping: Cut | None = None
        self._rollout_tokens = 0.0
        """Of a rollout that can be trained, as a running mean."""
        self._group_bytes = 0
        """The largest group of late."""
        self._barren = 0
        if snapshot:
            self._restore(snapshot)

    def __repr__(self) -> str:
        return (
            f"<Planner step {self.step} of {self.settings.steps}, version {self.version}: {self.in_flight} rollouts "
            f"running, {len(self._buffer)} ready with {self._buffer.bytes:,} bytes>"
        )

    @property
    def finished(self) -> bool:
        return self.step >= self.settings.steps and self._shipping is None

    @property
    def ready(self) -> int:
        """Rollouts that wait for their batch."""
        return len(self._buffer)

    @property
    def caught(self) -> dict[str, int]:
        """Rollouts that each filter caught, removed or not."""
        return self._judge.caught

    @property
    def buffered_bytes(self) -> int:
        return self._buffer.bytes

    @property
    def horizon(self) -> int:
        """The last step that work may be done for. Without a trainer to follow, one that keeps up is assumed."""
        trained = self.version if self.settings.follow else self.step
        return min(self.settings.steps, trained + 1 + self.settings.lag)

    @property
    def blocked_on_policy(self) -> bool:
        """Nothing can happen until there is a new policy version."""
        idle = self._shipping is None and not self._running
        return idle and not self.finished and self.step >= self.horizon

    # Groups out and back

    def launch(self, limit: int) -> list[Ticket]:
        """The groups to start now, with at most `limit` rollouts in flight."""
        tickets: list[Ticket] = []
        while (self._missing() > 0 or self._starved()) and self._admitted(limit):
            ticket = self._next_ticket()
            self._start(ticket)
            tickets.append(ticket)
        return tickets

    def arrive(self, landed: Landed) -> bool:
        """A group came back. False if nobody waits for it any more: it was cancelled, and its samples can go."""
        if self._stop(landed.ticket.number) is None:
            return False
        self._sources.learn(landed)
        self._group_bytes = max(self._group_bytes * 99 // 100, landed.bytes)
        fates = self._judge.fates(landed)
        kept = [fate for fate in fates if isinstance(fate, Ready)]
        self.accounts.settle(fate for fate in fates if isinstance(fate, Outcome))
        self._buffer.add(landed, kept)
        for ready in kept:
            self._rollout_tokens += (ready.arrival.tokens - self._rollout_tokens) / (20 if self._rollout_tokens else 1)
        self._drop_stale(kept)
        self._count_barren(any(ready.key in self._buffer for ready in kept))
        return True

    def advance(self, version: int) -> list[int]:
        """A new policy version. Returns the groups to cancel, which are settled already."""
        self.version = max(self.version, version)
        return self._cancel_stale()

    def ticket(self, number: int) -> Ticket | None:
        """That of a group which is running."""
        return self._running.get(number)

    def cancel(self, number: int, reason: str = "cancelled") -> bool:
        """Settle a running group, whose task the caller ends. False if it is not running."""
        ticket = self._stop(number)
        if ticket is None:
            return False
        self.accounts.settle([Outcome(Fate.DROPPED, reason)] * ticket.size)
        return True

    def end(self) -> list[int]:
        """Settle what is left. Returns the groups to cancel."""
        running = list(self._running)
        for number in running:
            self.cancel(number, RUN_ENDED)
        for ticket in self._again:
            self.accounts.settle([Outcome(Fate.DROPPED, RUN_ENDED)] * ticket.size)
        self._again.clear()
        self._remove(self._buffer.waiting, RUN_ENDED)
        return running

    # Batches

    def cut(self) -> Cut | None:
        """The next batch if it is whole and may be shipped. One at a time: `shipped` ends it."""
        if self._shipping is not None or self.step >= self.horizon:
            return None
        picks = whole_batch(self._buffer, self.settings.batch_size, self.settings.batch_tokens)
        if picks is None:
            return None
        self.step += 1
        trained_at = self._trained_at(self.step)
        self._buffer.take(picks)
        self._shipping = Cut(
            self.step,
            tuple(Pick(ready.group, ready.member, ready.advantage) for ready in picks),
            sum(ready.arrival.tokens for ready in picks),
            sum(ready.arrival.trained_tokens for ready in picks),
            max(ready.arrival.newest_version for ready in picks),
            tuple(ready.arrival.reward for ready in picks),
            tuple(max(trained_at - ready.arrival.oldest_version, 0) for ready in picks),
        )
        return self._shipping

    def shipped(self) -> list[int]:
        """The batch that was cut is where the trainer will find it. Returns the groups to cancel: time went on."""
        assert self._shipping is not None
        picks, self._shipping = self._shipping.picks, None
        self.accounts.settle([Outcome(Fate.TRAINED)] * len(picks))
        for pick in picks:
            self._buffer.leave(pick.group, pick.member)
        return self._cancel_stale()

    def take_released(self) -> list[Landed]:
        """Groups whose samples nobody needs any more, each told once. They may go when that is in a checkpoint."""
        return self._buffer.take_released()

    # Going on after a crash

    def snapshot(self) -> Snapshot:
        """What is running counts as lost: a later life runs it again. Not to be asked between `cut` and `shipped`."""
        assert self._shipping is None
        return Snapshot(
            step=self.step,
            version=self.version,
            sources=self._sources.state(),
            running=(*self._again, *self._running.values()),
            ready=self._buffer.waiting,
            landed=self._buffer.groups,
            accounts=self.accounts.copy(),
            caught=dict(self._judge.caught),
            baselines=self._judge.baselines,
        )

    def _restore(self, snapshot: Snapshot) -> None:
        self.step, self.version = snapshot.step, snapshot.version
        self.accounts = snapshot.accounts.copy()
        self._again = list(snapshot.running)
        self._judge.restore(snapshot.caught, snapshot.baselines)
        for landed in snapshot.landed:
            number = landed.ticket.number
            self._buffer.add(landed, [ready for ready in snapshot.ready if ready.group == number])

    def recover(self, found: Iterable[Landed], shipped: Mapping[int, Iterable[tuple[int, int]]]) -> None:
        """What happened after the snapshot: the groups that landed, and the (group, member) of each batch that was
        shipped since. To be called once, before anything else."""
        fresh = {landed.ticket.number: landed for landed in found if not self._buffer.holds(landed.ticket.number)}
        while self._sources.number <= max(fresh, default=-1):
            self._again.append(self._draw())
        lost = {ticket.number: ticket for ticket in self._again}
        for number, landed in sorted(fresh.items()):
            if number in lost:
                self._start(lost.pop(number))
                self.arrive(landed)
            else:
                # It was settled before the snapshot, and the crash came before its samples could go.
                self._buffer.release(landed)
        self._again = list(lost.values())
        for step in sorted(step for step in shipped if step > self.step):
            self._adopt_batch(step, shipped[step])

    def _adopt_batch(self, step: int, members: Iterable[tuple[int, int]]) -> None:
        if step != self.step + 1:
            raise UsageError(f"batch {step} is there but batch {self.step + 1} is not; the run cannot go on from here")
        self.step = step
        waiting = {ready.key: ready for ready in self._buffer.waiting}
        for key in members:
            if key not in waiting:
                raise UsageError(f"batch {step} holds rollout {key[1]} of group {key[0]}, which this run does not know")
            self._buffer.take([waiting[key]])
            self._buffer.leave(*key)
            self.accounts.settle([Outcome(Fate.TRAINED)])

    # How it decides

    def _trained_at(self, step: int) -> int:
        """The version that trains the batch of this step."""
        return max(step - 1, self.version) if self.settings.follow else self.version

    def _missing(self) -> int:
        """Rollouts that are wanted and neither ready nor running."""
        steps = self.horizon - self.step
        if steps <= 0:
            return 0
        wanted = math.ceil(self._rollouts_per_batch() * (steps + self.settings.spare))
        return wanted - len(self._buffer) - self.in_flight

    def _rollouts_per_batch(self) -> int:
        settings = self.settings
        if not settings.batch_tokens or not self._rollout_tokens:
            return settings.batch_size
        return min(settings.batch_size, math.ceil(settings.batch_tokens / self._rollout_tokens))

    def _starved(self) -> bool:
        """The rollouts that are ready were expected to make a batch and do not: they are shorter than those before."""
        if self._running or self._shipping is not None or self.step >= self.horizon:
            return False
        return whole_batch(self._buffer, self.settings.batch_size, self.settings.batch_tokens) is None

    def _admitted(self, limit: int) -> bool:
        if not self._running:
            # Something always runs while something is missing, or a small limit or budget would stop the run for ever.
            return True
        size = self._again[0].size if self._again else self._sources.peek().group_size
        expected = self._buffer.bytes + (len(self._running) + 1) * self._group_bytes
        return self.in_flight + size <= limit and expected <= self.settings.max_buffered_bytes

    def _next_ticket(self) -> Ticket:
        if self._again:
            return msgspec.structs.replace(self._again.pop(0), version=self.version)
        return self._draw()

    def _draw(self) -> Ticket:
        ticket = self._sources.draw(self.version)
        self.accounts.dispatched += ticket.size
        return ticket

    def _start(self, ticket: Ticket) -> None:
        self._running[ticket.number] = ticket
        self.in_flight += ticket.size

    def _stop(self, number: int) -> Ticket | None:
        ticket = self._running.pop(number, None)
        if ticket is not None:
            self.in_flight -= ticket.size
        return ticket

    def _count_barren(self, fertile: bool) -> None:
        self._barren = 0 if fertile else self._barren + 1
        if self._barren > self.settings.max_barren_groups:
            reasons = {**self.accounts.failed, **self.accounts.dropped}
            told = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
            raise GroupsFailed(
                f"step {self.step + 1} gave up after {self._barren} groups in a row with nothing to train on "
                f"(rollouts: {told}); mend the cause, or raise max_barren_groups"
            )

    def _cancel_stale(self) -> list[int]:
        """Drop what is ready and too old, and settle running groups that could not be trained whatever comes of it."""
        self._drop_stale(self._buffer.waiting)
        stale = [number for number, ticket in self._running.items() if ticket.version < self._oldest_of_use]
        for number in stale:
            self.cancel(number, STALE)
        return stale

    @property
    def _oldest_of_use(self) -> int:
        """The oldest version that the next batch may have been sampled by."""
        return self._trained_at(self.step + 1) - self.settings.max_staleness

    def _drop_stale(self, rollouts: Iterable[Ready]) -> None:
        stale = [ready for ready in rollouts if ready.arrival.oldest_version < self._oldest_of_use]
        if stale and self.settings.stale is StalePolicy.DROP:
            groups = {ready.group for ready in stale}
            keys = {ready.key for ready in stale}
            mates = [ready for ready in self._buffer.waiting if ready.group in groups and ready.key not in keys]
            self._remove(mates, GROUP_STALE)
        self._remove(stale, STALE)

    def _remove(self, rollouts: Iterable[Ready], reason: str) -> None:
        dropped = self._buffer.drop(rollouts)
        self.accounts.settle([Outcome(Fate.DROPPED, reason)] * dropped)
