"""The error tree, cut by what the caller does next.

    RollwrightError
    ├── UsageError            the person's input is wrong: say so in one sentence, exit 2
    ├── WireError             bytes from a peer or a file do not parse: refuse them, go on
    └── RolloutError          ends one rollout, never its neighbours; `layer` says whose fault it is
        ├── EngineError       the model's side
        │   ├── EngineRefused       this call will never succeed (wrong key, unknown model, bad request)
        │   └── EngineUnavailable   the endpoint is away or overloaded, retries included: later may succeed
        ├── HarnessError      the program that drives the model broke
        ├── RuntimeFault      the box: could not start, or refused an operation
        │   └── RuntimeLost         it died under us; a fresh box may succeed
        ├── TaskBroken        the task's own code raised or returned nonsense; another try will not help
        ├── ToolError         a tool's own code broke (a tool that answers "no" is a value, not this)
        └── ServingError      the workers that were asked gave no result

Every class takes one message, so each survives pickling and the wire. Errors are translated once, at the border where
they appear, with `raise ... from cause`.
"""

from __future__ import annotations

import traceback
from enum import StrEnum
from typing import ClassVar

import msgspec


class Layer(StrEnum):
    """Whose fault a failed rollout is. Exactly one per failure."""

    ENGINE = "engine"
    HARNESS = "harness"
    RUNTIME = "runtime"
    TASK = "task"
    TOOL = "tool"
    SERVING = "serving"


class RollwrightError(Exception):
    """Root of all errors that Rollwright raises on purpose."""


class UsageError(RollwrightError):
    """The person's input is wrong. The message is one sentence and names the next step."""


class WireError(RollwrightError):
    """Bytes from a peer or a file that are not what they claim to be."""


class RolloutError(RollwrightError):
    """Ends one rollout, never its neighbours."""

    layer: ClassVar[Layer] = Layer.HARNESS


class EngineError(RolloutError):
    """The model's side failed."""

    layer = Layer.ENGINE


class EngineRefused(EngineError):
    """The engine said no to this call and would say it again."""


class EngineUnavailable(EngineError):
    """The engine is away or overloaded, and stayed so through all retries."""


class HarnessError(RolloutError):
    """The program that drives the model broke."""

    layer = Layer.HARNESS


class RuntimeFault(RolloutError):
    """The box could not start or could not do what its contract promises."""

    layer = Layer.RUNTIME


class RuntimeLost(RuntimeFault):
    """The box died under us. A fresh box may succeed."""


class TaskBroken(RolloutError):
    """The task's own code raised or returned nonsense. Another try will not help."""

    layer = Layer.TASK


class ToolError(RolloutError):
    """A tool's own code broke."""

    layer = Layer.TOOL


class ServingError(RolloutError):
    """The workers that were asked gave no result."""

    layer = Layer.SERVING


class Failure(msgspec.Struct, frozen=True, gc=False):
    """An error as a value, for traces and files."""

    layer: Layer
    kind: str
    """Name of the error's class."""
    message: str
    trail: str = ""
    """The traceback, for the log; never shown to a person who did not ask for it."""

    @classmethod
    def of(cls, error: BaseException, layer: Layer | None = None) -> Failure:
        if layer is None:
            layer = error.layer if isinstance(error, RolloutError) else Layer.HARNESS
        trail = "".join(traceback.format_exception(error, limit=-12))
        return cls(layer=layer, kind=type(error).__name__, message=str(error) or type(error).__name__, trail=trail)
