"""Which conversation a call continues, and the tape that it left.

A call that names the answer it goes on after finds that one or none: two conversations may have heard the same words in
other tokens, and each must go on in its own. A call that names none is found by the value of its last answer, then by
walking back over what was said before it. Messages that are the same objects compare at the speed of pointers. Each
turn keeps only what it added, and the least recently used turns are forgotten past a budget; what was forgotten is
rendered anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from rollwright.renderers.tape import Tape
from rollwright.wire import Image, Message

# What a turn keeps besides its ids: the entry, the tape, the places of its messages.
_ENTRY_BYTES = 2048
# An id lies in the turn's own array and in the buffer of its line, which grows by doubling.
_BYTES_PER_ID = 12


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """An answer of ours, and all that was said before it."""

    before: Turn | None
    added: tuple[Message, ...]
    """The messages since the turn before, the answer last."""
    count: int
    """How many messages there are up to the answer."""
    tape: Tape
    routed: int = 0
    """How many positions have their routed experts on record, without a gap from the first."""
    images: dict[str, Image] = field(default_factory=dict)
    """What the conversation shows up to here, by hash."""
    name: str = ""
    """Of the answer, as whoever asked has it."""

    def begins(self, messages: Sequence[Message]) -> bool:
        """Whether `messages` begin with this turn's conversation."""
        turn: Turn | None = self
        while turn is not None:
            if tuple(messages[turn.count - len(turn.added) : turn.count]) != turn.added:
                return False
            turn = turn.before
        return True


class Memory:
    """The turns of all conversations of one engine."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._bytes = 0
        self._turns: OrderedDict[Turn, None] = OrderedDict()
        self._by_answer: dict[tuple[int, Message], list[Turn]] = {}
        self._by_name: dict[str, Turn] = {}
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._turns)

    def __repr__(self) -> str:
        return f"<Memory {len(self)} turns, {self._bytes} bytes, {self.forgotten} forgotten>"

    def find(self, messages: Sequence[Message], name: str = "") -> Turn | None:
        """The turn of this name, if `messages` continue it; without a name, the newest that they continue after their
        last answer. None if there is none of ours."""
        if name:
            named = self._by_name.get(name)
            if named is None or not named.begins(messages):
                return None
            self._turns.move_to_end(named)
            return named
        last = next((at for at in range(len(messages) - 1, -1, -1) if messages[at].role == "assistant"), -1)
        if last < 0:
            return None
        twins = self._by_answer.get((last + 1, messages[last]), ())
        # Two rollouts may be given the same words in other ids. The very object that we gave tells them apart.
        fitting = [turn for turn in twins if turn.begins(messages)]
        if not fitting:
            return None
        found = next((turn for turn in fitting if turn.added[-1] is messages[last]), fitting[-1])
        self._turns.move_to_end(found)
        return found

    def put(self, turn: Turn) -> None:
        self._turns[turn] = None
        self._bytes += _cost(turn)
        self._by_answer.setdefault((turn.count, turn.added[-1]), []).append(turn)
        if turn.name:
            self._by_name[turn.name] = turn
        while self._bytes > self._budget and len(self._turns) > 1:
            self._forget(self._turns.popitem(last=False)[0])

    def _forget(self, turn: Turn) -> None:
        self._bytes -= _cost(turn)
        self.forgotten += 1
        key = (turn.count, turn.added[-1])
        twins = self._by_answer[key]
        twins.remove(turn)
        if not twins:
            del self._by_answer[key]
        if self._by_name.get(turn.name) is turn:
            del self._by_name[turn.name]


def _cost(turn: Turn) -> int:
    return _ENTRY_BYTES + _BYTES_PER_ID * len(turn.tape.added)
