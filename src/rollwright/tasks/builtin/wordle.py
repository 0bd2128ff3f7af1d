"""Guess a hidden five-letter word in a few turns. The game goes on through `respond`; the guesses are in `state`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, ClassVar

from rollwright.tasks.marks import metric, reward
from rollwright.tasks.task import Task
from rollwright.tasks.taskset import Taskset
from rollwright.wire import Message, UsageError, assistant

from .words import ANSWERS

LETTERS = 5
SYSTEM = (
    "Guess the hidden five-letter word. Answer each time with one guess as <guess>word</guess>. You then see your "
    "guess with a mark for each letter: G if the letter is in its place, Y if it is in the word but elsewhere, - if it "
    "is not in the word (again)."
)
OPENING = "I am thinking of a common five-letter English word. What is your first guess?"
FIRST_GUESS = "crane"

_GUESS = re.compile(r"<guess>\s*([A-Za-z]+)\s*</guess>")
_FEEDBACK = re.compile(rf"^([a-z]{{{LETTERS}}}): ([GY-]{{{LETTERS}}})$", re.MULTILINE)


class WordleTask(Task, frozen=True):
    word: str
    max_guesses: int = 6

    def setup(self, state: dict[str, Any]) -> None:
        state["guesses"] = []

    def respond(self, reply: str, state: dict[str, Any]) -> str | None:
        """Marks the guess. What is no guess costs a turn too, so that a game always ends."""
        guess = guess_in(reply)
        state["guesses"].append(guess)
        if guess == self.word or self._left(state) == 0:
            return None
        return f"{self._comment(guess)}\n{self._left(state)} guesses left."

    def _comment(self, guess: str) -> str:
        if len(guess) != LETTERS:
            return f"I saw no five-letter guess. Write it as <guess>{'x' * LETTERS}</guess>."
        return f"{guess}: {marks_of(guess, self.word)}"

    def _left(self, state: dict[str, Any]) -> int:
        return self.max_guesses - len(state["guesses"])

    @reward(weight=0.8)
    def solved(self, state: dict[str, Any]) -> bool:
        return self.word in state["guesses"]

    @reward(weight=0.2)
    def closeness(self, state: dict[str, Any]) -> float:
        """The share of letters in their place in the best guess: something to climb for a model that never solves."""
        exact = [sum(map(str.__eq__, guess, self.word)) for guess in state["guesses"] if len(guess) == LETTERS]
        return max(exact, default=0) / LETTERS

    @metric
    def turns(self, state: dict[str, Any]) -> int:
        return len(state["guesses"])

    @metric
    def malformed(self, state: dict[str, Any]) -> int:
        return sum(len(guess) != LETTERS for guess in state["guesses"])

    def oracle(self, messages: Sequence[Message]) -> Message | None:
        """Plays from what the conversation shows and not from `word`: all games begin alike."""
        seen = tuple(pair for message in messages if message.role == "user" for pair in _FEEDBACK.findall(message.text))
        return assistant(f"<guess>{best_guess(seen)}</guess>")


class Wordle(Taskset, frozen=True):
    """Guess a hidden five-letter word in a few turns."""

    name: ClassVar[str] = "wordle"

    max_guesses: int = 6
    """Guesses in one game."""

    def tasks(self) -> Iterable[Task]:
        if self.max_guesses < 1:
            raise UsageError(f"wordle needs at least 1 guess, not {self.max_guesses}")
        for word in ANSWERS:
            yield WordleTask(
                id=f"wordle-{word}", prompt=OPENING, system=SYSTEM, word=word, max_guesses=self.max_guesses
            )


def guess_in(reply: str) -> str:
    """The last guess of a reply in lower case; empty if there is none."""
    guesses = _GUESS.findall(reply)
    return guesses[-1].lower() if guesses else ""


def marks_of(guess: str, word: str) -> str:
    """G, Y or - for each letter. A letter is marked at most as often as the word has it, places first."""
    spare = Counter(letter for letter, hidden in zip(word, guess, strict=True) if letter != hidden)
    marks = []
    for letter, hidden in zip(guess, word, strict=True):
        if letter == hidden:
            marks.append("G")
        elif spare[letter] > 0:
            spare[letter] -= 1
            marks.append("Y")
        else:
            marks.append("-")
    return "".join(marks)


@lru_cache(maxsize=4096)
def best_guess(seen: tuple[tuple[str, str], ...]) -> str:
    """The word, among those that fit all marks so far, that leaves the fewest words on average."""
    # The first guess is known: comparing all words with all words would hold up an engine's loop for half a second.
    return search(seen) if seen else FIRST_GUESS


def search(seen: tuple[tuple[str, str], ...]) -> str:
    fitting = [word for word in ANSWERS if all(marks_of(guess, word) == marks for guess, marks in seen)]
    return min(fitting or ANSWERS[:1], key=lambda guess: _left_after(guess, fitting))


def _left_after(guess: str, fitting: Sequence[str]) -> int:
    """Proportional to the words left on average: each outcome counts as often as it has words."""
    return sum(size * size for size in Counter(marks_of(guess, word) for word in fitting).values())
