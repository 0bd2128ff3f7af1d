"""Calls that wait for shared workers, and the lanes that carry them: one worker and one CPU slot are one lane.

A lane keeps its slot while there are calls and nobody else waits for a slot. The next call lies at the worker's door
while it answers the last one, so that it never waits for this process; its deadline begins when the answer before it
is here (law 6). A call whose worker is busy for long, or ends for another's sake, is asked again elsewhere: whoever
shares a worker has said that nothing stays of a call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollwright.runtimes.slots import CpuSlots
from rollwright.wire import RuntimeFault

from .seat import Loadable
from .workers import Worker
from .zygotes import Unwarm

if TYPE_CHECKING:
    from .keeper import Keeper

_GIVEN = 2
_DOOR_S = 0.2
"""How long a call lies at the door of a worker that is busy with another; then it is taken elsewhere."""


@dataclass(slots=True, eq=False)
class Ask:
    """One call. `answer` is what `main` printed on stdout and stderr; TimeoutError at the deadline, Unwarm where the
    script has to be run cold instead."""

    body: bytes
    env: Mapping[str, str]
    timeout_s: float
    answer: asyncio.Future[tuple[bytes, bytes]]
    asked: float
    begun: float = 0.0
    lane: Lane | None = None

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class Crew:
    """The calls of one script on one set of slots. `repr` is a status line."""

    def __init__(self, home: Keeper, script: Loadable, slots: CpuSlots) -> None:
        self.home = home
        self.script = script
        self.slots = slots
        self.waiting: deque[Ask] = deque()
        self._lanes: set[Lane] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Crew {len(self._lanes)} lanes, {len(self.waiting)} waiting>"

    @property
    def idle(self) -> bool:
        return not (self._lanes or self._opening or self.waiting)

    @property
    def presses(self) -> bool:
        """Whether more calls wait than lanes are about to open for: only then one may lie at a door."""
        return len(self.waiting) > len(self._opening)

    def ask(self, body: bytes, env: Mapping[str, str], timeout_s: float) -> Ask:
        """A call in the queue. Whoever asks awaits its answer, and abandons it when that was cancelled."""
        loop = asyncio.get_running_loop()
        ask = Ask(body, env, timeout_s, loop.create_future(), loop.time())
        if self._closed:
            ask.fail(Unwarm("closed"))
            return ask
        self.waiting.append(ask)
        self.open_lanes()
        if self.presses:
            for lane in self._lanes:
                if lane.has_room:
                    lane.feed()
                    break
        return ask

    def abandon(self, ask: Ask) -> None:
        """Nobody waits for it any more. What runs is ended; what lies at a door is dealt with when its turn comes."""
        if ask.lane is not None:
            ask.lane.abandon(ask)
        elif ask in self.waiting:
            self.waiting.remove(ask)

    def ended(self, lane: Lane) -> None:
        """The lane has no call any more, or no worker: its slot is free."""
        self._lanes.discard(lane)
        self.home.give_back(lane.worker)
        self.slots.release()
        self.open_lanes()

    async def close(self) -> None:
        """Answer nobody any more."""
        self._closed = True
        for lane in list(self._lanes):
            lane.break_off(Unwarm("closed"))
        self._fail_all(Unwarm("closed"))
        opening = list(self._opening)
        for task in opening:
            task.cancel()
        if opening:
            await asyncio.wait(opening)

    def _opened(self, opening: asyncio.Task[None]) -> None:
        """Whatever was left for it and was not taken may lie at a door now."""
        self._opening.discard(opening)
        for lane in list(self._lanes):
            if self.presses and lane.has_room:
                lane.feed()

    async def _open(self) -> None:
        try:
            await self.slots.acquire()
        except RuntimeFault as error:
            self._fail_all(error)
            return
        try:
            worker = await self.home.worker(self.script)
        except BaseException as error:
            self.slots.release()
            if not isinstance(error, Exception):
                raise
            # Whatever keeps a worker from being there, these calls have a way without one.
            self._fail_all(error if isinstance(error, Unwarm) else Unwarm(f"no worker: {type(error).__name__}"))
            return
        self._begin(worker)

    def _begin(self, worker: Worker) -> None:
        lane = Lane(self, worker)
        self._lanes.add(lane)
        lane.feed()

    def open_lanes(self) -> None:
        """As many as there are calls that wait and slots that could be had. Where both a worker and a slot are free,
        at once."""
        room = 0 if self._closed else self.slots.count - len(self._lanes)
        while len(self._opening) < min(room, len(self.waiting)):
            worker = self.home.idle_worker(self.script)
            if worker is not None and self.slots.acquire_now():
                self._begin(worker)
                room -= 1
                continue
            if worker is not None:
                self.home.give_back(worker)
            opening = asyncio.create_task(self._open(), name="open a lane")
            self._opening.add(opening)
            opening.add_done_callback(self._opened)

    def _fail_all(self, error: Exception) -> None:
        while self.waiting:
            self.waiting.popleft().fail(error)


class Lane:
    """A worker that has a slot, and the calls that it was given: the first is the one that it answers."""

    def __init__(self, crew: Crew, worker: Worker) -> None:
        self.worker = worker
        self._crew = crew
        self._loop = asyncio.get_running_loop()
        self._given: deque[Ask] = deque()
        self._deadline: asyncio.TimerHandle | None = None
        self._spoiled = False
        """What lies at the door is wanted no more: the worker ends with the call that it is at."""
        worker.on_answer = self._on_answer

    @property
    def has_room(self) -> bool:
        """Whether a call could lie at the door: not at that of a worker which is busy for long already."""
        return len(self._given) == 1 and self._loop.time() - self._given[0].begun < _DOOR_S

    def feed(self) -> None:
        """Give the worker what it can take; where there is nothing more, the lane ends."""
        waiting = self._crew.waiting
        while waiting and len(self._given) < _GIVEN and self._may_go_on():
            if self._given and not self._crew.presses:
                break
            ask = waiting.popleft()
            if ask.answer.done():
                continue
            if not self.worker.zygote.suits(ask.env):
                ask.fail(Unwarm("environment"))
                continue
            try:
                sent = self.worker.send(ask.body)
            except Unwarm as gone:
                if self.worker.asked:
                    waiting.appendleft(ask)
                else:  # One that never lived is not followed by one more of its kind.
                    ask.fail(gone)
                self.break_off(gone)
                return
            if not sent:
                waiting.appendleft(ask)
                break
            ask.lane = self
            self._given.append(ask)
            if len(self._given) == 1:
                self._begin()
        if not self._given:
            self.worker.on_answer = None
            self._crew.ended(self)

    def abandon(self, ask: Ask) -> None:
        if self._given and self._given[0] is ask:
            self.break_off(Unwarm("not wanted"))

    def break_off(self, error: Exception) -> None:
        """End the worker in the middle of its call; the call at its door is asked again."""
        self._stop_clock()
        self.worker.on_answer = None
        self.worker.close()
        if self._given:
            self._hand_back()
            self._given.popleft().fail(error)
        self._crew.ended(self)

    def _may_go_on(self) -> bool:
        """A slot goes to whoever else waits for one; a worker that is spent is not asked again."""
        return not (self._spoiled or self._crew.slots.contended or self._crew.home.outworn(self.worker))

    def _begin(self) -> None:
        """The first call's time begins; one that was cancelled at the door is ended with its worker."""
        ask = self._given[0]
        if ask.answer.done():
            self.break_off(Unwarm("not wanted"))
            return
        ask.begun = self._loop.time()
        self._deadline = self._loop.call_later(min(ask.timeout_s, _DOOR_S), self._look_at_clock)

    def _look_at_clock(self) -> None:
        ask = self._given[0]
        left_s = ask.begun + ask.timeout_s - self._loop.time()
        if left_s <= 0:
            self.break_off(TimeoutError())
            return
        self._deadline = self._loop.call_later(left_s, self._look_at_clock)
        if len(self._given) > 1:
            self._spoiled = True
            self._hand_back()

    def _hand_back(self) -> None:
        """What was given beyond the first call goes back to where it came from."""
        while len(self._given) > 1:
            ask = self._given.pop()
            ask.lane = None
            self._crew.waiting.appendleft(ask)
        self._crew.open_lanes()

    def _on_answer(self, answer: tuple[bytes, bytes] | Unwarm) -> None:
        if self.worker.broken:
            self.break_off(answer if isinstance(answer, Unwarm) else Unwarm("worker died"))
            return
        self._stop_clock()
        ask = self._given.popleft()
        if isinstance(answer, Unwarm):
            ask.fail(answer)
        elif not ask.answer.done():
            ask.answer.set_result(answer)
        if self._spoiled:
            self.break_off(Unwarm("not wanted"))
            return
        if self._given:
            self._begin()
        if self.worker.on_answer is not None:
            self.feed()

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
