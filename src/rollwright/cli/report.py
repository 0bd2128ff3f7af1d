"""The result of a run in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from rollwright.rollouts import Summary
from rollwright.wire import Image, Part, Reasoning, Text, ToolCall, ToolResult, Trace

from .books import Books
from .table import span


class Result(msgspec.Struct, frozen=True):
    """What `--json` prints and summary.json keeps: the summary, and what it is a summary of."""

    taskset: str
    model: str
    directory: str
    interrupted: bool
    kept: int
    """Rollouts that an earlier session had finished."""
    summary: Summary

    def flat(self) -> dict[str, Any]:
        table: dict[str, Any] = msgspec.to_builtins(self)
        return {**table.pop("summary"), **table}

    @property
    def complete(self) -> bool:
        summary = self.summary
        return not self.interrupted and summary.failed == 0 and summary.finished == summary.planned


def told(result: Result, books: Books) -> str:
    """The end of a run, for a person."""
    summary = result.summary
    lines = [f"{result.taskset} with {result.model}: {_count(result)}", ""]
    lines += [_row(name, value) for name, value in _scored(summary)]
    lines += [_row(name, value) for name, value in _spent(summary, books)]
    if summary.failed:
        layers = ", ".join(f"{layer} {count}" for layer, count in summary.failures.items())
        lines.append(_row("failed", f"{summary.failed} of {summary.planned}: {layers}"))
        lines += [_row("", f"{count}x {layer}: {message}") for layer, message, count in books.common_failures()]
    lines.append(_row("traces", str(Path(result.directory) / "traces.jsonl")))
    if not result.complete:
        lines.append(_row("next", f"add --resume -o {result.directory} to the same command to do what is missing"))
    return "\n".join(lines)


def conversation(trace: Trace) -> str:
    """One rollout, word for word."""
    lines = [f"{trace.task_id}, attempt {trace.attempt}: reward {trace.reward:.3f}, {trace.stop}"]
    for message in trace.messages:
        lines += ["", f"[{message.role}]", *map(_part, message.parts)]
    return "\n".join(lines)


def _part(part: Part) -> str:
    match part:
        case Text(text):
            return text
        case Reasoning(text):
            return f"(thinking) {text}"
        case ToolCall(_, name, arguments):
            return f"(calls) {name} {arguments}"
        case ToolResult(_, content):
            return "".join(map(_part, content))
        case Image(sha256, media_type):
            return f"(image) {media_type} {sha256[:12]}"


def _count(result: Result) -> str:
    summary = result.summary
    kept = f", {result.kept} of them from before" if result.kept else ""
    stopped = ", interrupted" if result.interrupted else ""
    return f"{summary.finished} of {summary.planned} rollouts{kept}{stopped}"


def _scored(summary: Summary) -> list[tuple[str, str]]:
    if summary.reward_mean is None:
        return [("reward", "none: no rollout finished")]
    found = [("reward", _interval(summary))]
    if summary.pass_at:
        found.append(("pass@k", "  ".join(f"{k}: {share:.3f}" for k, share in summary.pass_at.items())))
    if summary.scores:
        found.append(("scores", "  ".join(f"{name} {mean:.3f}" for name, mean in summary.scores.items())))
    return found


def _interval(summary: Summary) -> str:
    if summary.reward_low is None or summary.reward_high is None:
        return f"{summary.reward_mean:.3f} (one task gives no interval)"
    return f"{summary.reward_mean:.3f} (95% interval {summary.reward_low:.3f} to {summary.reward_high:.3f})"


def _spent(summary: Summary, books: Books) -> list[tuple[str, str]]:
    usage = summary.usage
    rate = books.tokens_now / max(summary.wall_s, 1e-3)
    phases = "  ".join(f"{name} {seconds:.3f} s" for name, seconds in summary.phases.items())
    stops = "  ".join(f"{name} {count}" for name, count in summary.stops.items())
    return [
        ("tokens", f"{usage.prompt_tokens:,} in, {usage.completion_tokens:,} out ({rate:,.0f} out/s)"),
        ("time", f"{span(summary.wall_s)} in all"),
        ("per rollout", phases),
        *([("ended by", stops)] if stops else []),
    ]


def _row(name: str, value: str) -> str:
    return f"{name:<12}{value}"
