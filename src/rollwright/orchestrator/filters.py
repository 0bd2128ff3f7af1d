"""What is kept out of the training data, or only counted. Rollouts are looked at in a thread as they come back, token
by token and in numpy; groups on the loop, when their advantages are known.

Each kind is its own settings: a frozen struct, chosen by `kind`. In mode `monitor` a filter counts whom it catches and
lets them pass; in mode `enforce` they are dropped, with its name as the reason. The bound on staleness is no filter of
this kind: only dispatch knows when a rollout would be trained, so it is `max_staleness` of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rollwright.wire import Finish, RollwrightError, Trace, UsageError
from rollwright.wire.arrays import Floats, Logprobs, Mask

from .plugins import load_plugin
from .repeats import repeated_share
from .samples import Sample

RESERVED = frozenset({"stale", "staleness"})
"""Reasons that dispatch itself gives."""


class Mode(StrEnum):
    MONITOR = "monitor"
    ENFORCE = "enforce"


class _Filter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    mode: Mode = Mode.MONITOR
    """`enforce` drops whom it catches, `monitor` only counts them."""
    name: str = ""
    """What it is called in counts and reasons; empty for its kind."""


class ZeroAdvantage(_Filter, frozen=True, tag="zero_advantage"):
    """Catches finished rollouts whose advantage is 0: they move no weight, and a step of them is a wasted one."""


class Repetition(_Filter, frozen=True, tag="repetition"):
    """Catches a rollout with an answer that goes in circles: more than `max_share` of its runs of `window` tokens have
    come before in the same answer. Answers are looked at one by one, since the calls of a good agent look alike."""

    window: int = 32
    """Tokens of a run; shorter repetitions are good style."""
    max_share: float = 0.5
    """Of 1; text that says everything twice has 0.5."""
    min_tokens: int = 256
    """Shorter answers are not looked at."""

    def __post_init__(self) -> None:
        _require(self.window >= 1 and self.min_tokens >= self.window, "repetition: window must be 1 to min_tokens")
        _require(0 <= self.max_share < 1, "repetition: max_share must be 0 or more and less than 1")

    def catches(self, samples: Sequence[Sample], trace: Trace) -> bool:
        answers = (answer for sample in samples for answer in answers_of(sample) if len(answer) >= self.min_tokens)
        return any(repeated_share(answer, self.window) > self.max_share for answer in answers)


class Gibberish(_Filter, frozen=True, tag="gibberish"):
    """Catches a rollout that lost its thread: in some stretch of `window` sampled tokens the mean logprob is below
    `min_logprob`. A model that samples from itself stays near -1 on text it can follow, and a stretch of noise is some
    ten nats below, so the default (a perplexity of 150) catches noise and spares surprise."""

    window: int = 64
    """Sampled tokens of a stretch; a rollout with fewer is not looked at."""
    min_logprob: float = -5.0
    """Mean of a stretch, in nats."""

    def __post_init__(self) -> None:
        _require(self.window >= 1, "gibberish: window must be 1 or more")

    def catches(self, samples: Sequence[Sample], trace: Trace) -> bool:
        return any(lowest_mean(sample.logprobs[sample.mask], self.window) < self.min_logprob for sample in samples)


class Length(_Filter, frozen=True, tag="length"):
    """Catches rollouts that are too long or too short. A bound of 0 is none."""

    max_sample_tokens: int = 0
    """Of the longest sample, prompts included: what the trainer has room for."""
    max_sampled_tokens: int = 0
    """That the model has said in all."""
    min_sampled_tokens: int = 0
    """That the model has said in all."""
    truncated: bool = False
    """Also catch a rollout with an answer that was cut off at its limit of tokens."""

    def catches(self, samples: Sequence[Sample], trace: Trace) -> bool:
        longest = max((len(sample.ids) for sample in samples), default=0)
        sampled = sum(int(np.count_nonzero(sample.mask)) for sample in samples)
        return (
            (0 < self.max_sample_tokens < longest)
            or (0 < self.max_sampled_tokens < sampled)
            or sampled < self.min_sampled_tokens
            or (self.truncated and any(call.finish is Finish.LENGTH for call in trace.calls))
        )


class CustomFilter(_Filter, frozen=True, tag="custom"):
    """Code of the user's: a function of (samples, trace) that says whether to catch the rollout, or a class that is
    made with `options` and whose instances are called so. It runs in a thread, once per rollout, on samples without
    routed experts."""

    path: str
    """`module:name`."""
    options: dict[str, Any] = {}
    """Passed by name."""


FilterConfig = ZeroAdvantage | Repetition | Gibberish | Length | CustomFilter


class RolloutFilters:
    """Those that look at one rollout. Safe in several threads, if the user's own are."""

    def __init__(self, named: dict[str, Repetition | Gibberish | Length | _Custom]) -> None:
        self._named = named

    def __len__(self) -> int:
        return len(self._named)

    def flags(self, samples: Sequence[Sample], trace: Trace) -> tuple[str, ...]:
        """The names of those that catch the rollout."""
        return tuple(name for name, filter in self._named.items() if filter.catches(samples, trace))


class GroupFilters:
    """Those that need the group's advantages."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)

    def flags(self, advantages_G: Floats, finished_G: Mask) -> list[tuple[str, ...]]:  # noqa: N803
        """Of each member, the names of those that catch it."""
        caught_G = (advantages_G == 0) & finished_G  # noqa: N806
        return [self._names if caught else () for caught in caught_G.tolist()]


class Filters(NamedTuple):
    rollout: RolloutFilters
    group: GroupFilters
    names: tuple[str, ...]
    enforced: frozenset[str]


def make_filters(configs: Sequence[FilterConfig] = ()) -> Filters:
    named: dict[str, FilterConfig] = {}
    for config in configs:
        name = _name_of(config)
        _require(name not in RESERVED, f"a filter cannot be named {name!r}: that is a reason of dispatch")
        _require(name not in named, f"two filters are named {name!r}; give one of them another `name`")
        named[name] = config
    rollout: dict[str, Repetition | Gibberish | Length | _Custom] = {}
    for name, config in named.items():
        if isinstance(config, CustomFilter):
            rollout[name] = _Custom(config)
        elif not isinstance(config, ZeroAdvantage):
            rollout[name] = config
    group = [name for name, config in named.items() if isinstance(config, ZeroAdvantage)]
    enforced = frozenset(name for name, config in named.items() if config.mode is Mode.ENFORCE)
    return Filters(RolloutFilters(rollout), GroupFilters(group), tuple(named), enforced)


def answers_of(sample: Sample) -> Iterator[Any]:
    """The ids of each stretch that this sample trains."""
    edges = (1 + np.flatnonzero(sample.mask[1:] != sample.mask[:-1])).tolist()
    if sample.mask[:1].any():
        edges.insert(0, 0)
    stops = [*edges[1::2], len(sample.mask)]
    return (sample.ids[start:stop] for start, stop in zip(edges[::2], stops, strict=False))


def lowest_mean(logprobs: Logprobs, window: int) -> float:
    """Of all stretches of `window` values; 0 if there is none."""
    if len(logprobs) < window:
        return 0.0
    sums = np.cumsum(logprobs, dtype=np.float64)
    sums[window:] -= sums[:-window].copy()
    return float(sums[window - 1 :].min()) / window


class _Custom:
    """The border to the user's code."""

    def __init__(self, config: CustomFilter) -> None:
        self._path = config.path
        plugin = load_plugin(config.path, "filter")
        if not isinstance(plugin, type):
            self._plugin: Any = partial(plugin, **config.options)
            return
        try:
            self._plugin = plugin(**config.options)
        except Exception as error:
            raise UsageError(f"filter {config.path!r} could not be made: {error}") from error

    def catches(self, samples: Sequence[Sample], trace: Trace) -> bool:
        try:
            return bool(self._plugin(samples, trace))
        except Exception as error:
            raise RollwrightError(f"filter {self._path!r} raised {type(error).__name__}: {error}") from error


def _name_of(config: FilterConfig) -> str:
    if isinstance(config, CustomFilter):
        return config.name or config.path.rpartition(":")[2]
    return config.name or str(type(config).__struct_config__.tag)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise UsageError(otherwise)
