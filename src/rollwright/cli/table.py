"""A run while it goes: a live table on a terminal, a plain line every few seconds elsewhere.

Both show the same Panel, whatever verb it is of. The table is drawn in a thread, four times a second, so that the loop
only carries.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from rollwright.rollouts import Evaluation
from rollwright.telemetry import LoopLagMonitor

from .books import Books
from .talk import Talk

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

LIVE_S = 0.25
PLAIN_S = 5.0


class Panel(msgspec.Struct, frozen=True):
    """What is shown of one moment."""

    title: str
    done: int
    planned: int
    rows: list[tuple[str, str]]
    """Name and value of each number, in words."""
    alarming: frozenset[str] = frozenset()
    """Names of the rows that somebody should look at."""

    @property
    def line(self) -> str:
        return "  ".join(f"{name} {value}" for name, value in self.rows)


class Glance(msgspec.Struct, frozen=True):
    """The numbers of one moment of an evaluation."""

    title: str
    planned: int
    finished: int
    in_flight: int
    failures: dict[str, int]
    reward: float | None
    rollouts_per_s: float
    tokens_per_s: float
    elapsed_s: float
    left_s: float | None
    lag_p99_s: float
    draining: bool


def glance(title: str, evaluation: Evaluation, books: Books, monitor: LoopLagMonitor) -> Glance:
    rollouts_per_s, tokens_per_s = books.rates()
    left = books.planned - books.finished - books.failed
    return Glance(
        title=title,
        planned=books.planned,
        finished=books.finished,
        in_flight=evaluation.in_flight,
        failures=books.failures,
        reward=books.reward_so_far,
        rollouts_per_s=rollouts_per_s,
        tokens_per_s=tokens_per_s,
        elapsed_s=books.elapsed_s,
        left_s=max(left, 0) / rollouts_per_s if rollouts_per_s > 0 else None,
        lag_p99_s=monitor.snapshot().p99_s,
        draining=evaluation.draining,
    )


def rows(seen: Glance) -> list[tuple[str, str]]:
    """Name and value of each number, in words."""
    failed = sum(seen.failures.values())
    layers = ", ".join(f"{layer} {count}" for layer, count in seen.failures.items())
    left = "?" if seen.left_s is None else span(seen.left_s)
    return [
        ("done", f"{seen.finished + failed} of {seen.planned}" + (" (finishing)" if seen.draining else "")),
        ("in flight", str(seen.in_flight)),
        ("reward", "-" if seen.reward is None else f"{seen.reward:.3f}"),
        ("failed", f"{failed} ({layers})" if failed else "0"),
        ("rate", f"{seen.rollouts_per_s:.1f} rollouts/s, {seen.tokens_per_s:,.0f} tokens/s"),
        ("time", f"{span(seen.elapsed_s)}, {left} left"),
        ("loop lag p99", f"{seen.lag_p99_s * 1000:.1f} ms"),
    ]


def panel(seen: Glance) -> Panel:
    failed = sum(seen.failures.values())
    alarming = frozenset({"failed"} if failed else ())
    return Panel(seen.title, seen.finished + failed, seen.planned, rows(seen), alarming)


def span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{seconds:.1f} s"


def drawn(seen: Panel) -> Table:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(seen.title), title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    table.add_row("", ProgressBar(total=max(seen.planned, 1), completed=seen.done, width=40))
    for name, value in seen.rows:
        table.add_row(name, Text(value, style="red" if name in seen.alarming else ""))
    return table


@asynccontextmanager
async def shown(look: Callable[[], Panel], talk: Talk, *, live: bool | None = None) -> AsyncIterator[None]:
    """Show what `look` sees until the block ends, and once more then."""
    on_terminal = sys.stderr.isatty() if live is None else live
    show = _live if on_terminal else _plain
    ended = asyncio.Event()
    showing = asyncio.create_task(show(look, talk, ended), name="progress")
    try:
        yield
    finally:
        ended.set()
        await asyncio.gather(showing, return_exceptions=True)


async def _plain(look: Callable[[], Panel], talk: Talk, ended: asyncio.Event) -> None:
    while not await _is_over(ended, PLAIN_S):
        talk.say(look().line)
    talk.say(look().line)


async def _live(look: Callable[[], Panel], talk: Talk, ended: asyncio.Event) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    with Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as screen:
        talk.above = lambda text: console.print(text, markup=False, highlight=False)
        try:
            over = False
            while not over:
                over = await _is_over(ended, LIVE_S)
                # Seen on the loop, where the numbers change; drawn in a thread.
                await asyncio.to_thread(_draw, screen, look())
        finally:
            talk.above = None


def _draw(screen: Live, seen: Panel) -> None:
    screen.update(drawn(seen), refresh=True)


async def _is_over(ended: asyncio.Event, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            await ended.wait()
    except TimeoutError:
        return False
    return True
