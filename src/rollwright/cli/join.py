"""`rollwright join SERVER`: one more worker for a running server, in this process, on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from rollwright import telemetry
from rollwright.serve.joining import join
from rollwright.wire import UsageError

from . import flags
from .addresses import read_address
from .fields import settings_of
from .talk import Talk


class JoinSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Work for a running server until it says to leave, or until SIGTERM; what is here is finished first. SERVER is
    the directory or file that `rollwright serve` left its address in, or tcp://HOST:PORT with --keys."""

    keys: str = ""
    """The file peer-keys.json that `rollwright keys` wrote, where the server is named by tcp://HOST:PORT."""
    capacity: int = 0
    """Rollouts at once; 0 takes the server's own number."""
    patience_s: float = 300.0
    """How long a server may be silent before this worker gives up."""
    debug: bool = False
    """Show the traceback of an error."""

    def __post_init__(self) -> None:
        if self.capacity < 0:
            raise UsageError(f"capacity is {self.capacity}; set it to 0 or more")
        if not self.patience_s > 0:
            raise UsageError(f"patience_s is {self.patience_s:g}; set it to more than 0")


def parsed(argv: Sequence[str]) -> tuple[str, JoinSettings] | None:
    """The server and the settings, or None if the help was asked for and shown."""
    known = settings_of(JoinSettings)
    line = flags.cut("join", argv, known, {})
    if line.help:
        flags.print_help(JoinSettings(), "rollwright join SERVER", {}, JoinSettings.__doc__ or "")
        return None
    if len(line.words) != 1:
        raise UsageError("join takes a server: the directory that `rollwright serve` named, or tcp://HOST:PORT")
    flags.checked(line.given, known)
    return line.words[0], flags.apply(JoinSettings(), line.given, known, "rollwright join")


def main(argv: Sequence[str], talk: Talk) -> int:
    found = parsed(argv)
    if found is None:
        return 0
    place, settings = found
    address = read_address(place, settings.keys)
    talk.say(f"Working for {address.front} as process {os.getpid()}; SIGTERM ends it when it has finished.")
    telemetry.run(join(address, capacity=settings.capacity, patience_s=settings.patience_s))
    return 0
