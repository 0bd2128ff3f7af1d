"""What a run must not forget, in one small file that is replaced whole. Msgpack, no code in it, and no arrays: the
samples of buffered groups lie in files of their own (landing.py), which the checkpoint refers to."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rollwright.wire import UsageError, WireError
from rollwright.wire.durable import replace_file

from .evals import EvalState
from .plans import Snapshot

NAME = "checkpoint.msgpack"
FORMAT = 1


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    identity: dict[str, str | int | float]
    """The settings that decide which rollouts there are; a run goes on with the same ones only."""
    plan: Snapshot
    evals: EvalState = EvalState()
    concurrency: int
    """Rollouts in flight that the engine was found to digest."""


def save_checkpoint(directory: Path, checkpoint: Checkpoint) -> None:
    """Blocking. Returns when it would survive a power cut."""
    replace_file(directory / NAME, msgspec.msgpack.encode(checkpoint))


def load_checkpoint(directory: Path, identity: dict[str, str | int | float]) -> Checkpoint | None:
    """The checkpoint of this run; None if it had none yet."""
    path = directory / NAME
    try:
        checkpoint = msgspec.msgpack.decode(path.read_bytes(), type=Checkpoint)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise WireError(f"{path} is not a checkpoint: {error}") from error
    if checkpoint.format != FORMAT:
        raise WireError(f"{path} has format {checkpoint.format}; this version reads {FORMAT}")
    for name in {**checkpoint.identity, **identity}:
        before, now = checkpoint.identity.get(name), identity.get(name)
        if before != now:
            raise UsageError(
                f"{directory} was run with {name} {before!r}, not {now!r}; use the old value or another directory"
            )
    return checkpoint
