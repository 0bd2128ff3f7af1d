"""The tally of a run, with what a person wants to see of it: how fast it goes, and what the failures say."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable

from rollwright.rollouts import Tally
from rollwright.wire import Trace

WINDOW_S = 15.0
_MESSAGE_CHARS = 160


class Books(Tally):
    """Counts rollouts, those of earlier sessions included."""

    def __init__(
        self, planned: int, *, pass_threshold: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(planned, pass_threshold=pass_threshold)
        self.kept = 0
        """Rollouts that an earlier session finished."""
        self.done_now = 0
        """Rollouts that ended in this session, well or not."""
        self.tokens_now = 0
        """Sampled tokens of this session."""
        self._clock = clock
        self._began = clock()
        self._marks: deque[tuple[float, int, int]] = deque([(self._began, 0, 0)])
        self._messages: dict[tuple[str, int], tuple[str, str]] = {}

    def keep(self, finished: Iterable[Trace], failed: Iterable[Trace]) -> None:
        """Take over what earlier sessions left. A failure counts until its rollout is done again."""
        for trace in failed:
            self._book(trace)
        for trace in finished:
            self._book(trace)
            self.kept += 1

    def start(self) -> None:
        """Work begins now: rates count from here."""
        self._began = self._clock()
        self._marks = deque([(self._began, 0, 0)])

    def add(self, trace: Trace) -> None:
        self._book(trace)
        self.done_now += 1
        self.tokens_now += trace.usage.completion_tokens
        now = self._clock()
        # One mark each half second is enough to read a rate from, and bounds their number.
        if now - self._marks[-1][0] >= 0.5:
            self._marks.append((now, self.done_now, self.tokens_now))
        while len(self._marks) > 2 and now - self._marks[1][0] > WINDOW_S:
            self._marks.popleft()

    def _book(self, trace: Trace) -> None:
        super().add(trace)
        if trace.failure is not None:
            self._messages[trace.key] = (trace.failure.layer.value, one_line(trace.failure.message))
        else:
            self._messages.pop(trace.key, None)

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._began

    def rates(self) -> tuple[float, float]:
        """Rollouts and sampled tokens per second, lately."""
        since, done, tokens = self._marks[0]
        span = max(self._clock() - since, 1e-3)
        return (self.done_now - done) / span, (self.tokens_now - tokens) / span

    def common_failures(self, most: int = 5) -> list[tuple[str, str, int]]:
        """Layer, message, how many; the most common first."""
        counted = Counter(self._messages.values()).most_common(most)
        return [(layer, message, count) for (layer, message), count in counted]


def one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MESSAGE_CHARS else line[: _MESSAGE_CHARS - 1] + "…"
