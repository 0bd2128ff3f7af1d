"""Settings of a Modal box. Tokens are not among them: the vendor's own environment and file have those."""

from __future__ import annotations

import re

from rollwright.runtimes.contract import RuntimeConfig
from rollwright.wire import UsageError

_DAY_S = 86_400
_NAME = re.compile(r"[A-Za-z0-9._-]{1,63}")


class ModalConfig(RuntimeConfig, frozen=True, kw_only=True, tag_field="kind", tag="modal"):
    """Sandboxes of Modal. Zero means the vendor's own value unless a field says otherwise."""

    app: str = "rollwright"
    """The Modal app that the sandboxes belong to; it is made if there is none."""
    image: str = ""
    """A registry image; empty is the vendor's Debian with Python and uv."""
    python: str = "3.12"
    """Python of the default image. Without meaning where `image` is set."""
    cpu: float = 0.0
    """Cores that are reserved."""
    memory_mb: int = 0
    """Memory that is reserved; the same number is the hard limit."""
    region: str = ""
    """Where the sandbox runs; empty lets the vendor choose."""
    block_network: bool = False
    """Cut the box off: no program in it reaches anything outside."""
    lifetime_s: int = 3600
    """Age at which the vendor ends the box, at most a day."""
    idle_timeout_s: int = 0
    """Time without a command after which the vendor ends the box; 0 is never."""
    ports: tuple[int, ...] = ()
    """Ports inside the box that `expose` can give an address to. The vendor wants them when the box is made."""
    forward_via: str = ""
    """A public address by which the box reaches what `forward` is asked for, `{port}` standing for the port. Empty uses
    a relay through the vendor's connection, which needs python3 in the image."""
    directory: str = "/rollwright"
    """Where workspace, HOME and temporary files of the box live in the image."""
    watched: tuple[str, ...] = ("/",)
    """Places outside of `directory` that `inspect` looks through, with all that is mounted below them. A box in which
    anything has changed there is not used again."""
    ignored: tuple[str, ...] = ()
    """Places below those that the image itself changes, such as the logs of its daemons."""
    start_timeout_s: float = 300.0
    """Time for making a box, retries and the wait for a turn included."""
    creates_per_s: float = 5.0
    """How many boxes this process begins to make per second, all its runtimes of this kind taken together."""
    output_limit: int = 1 << 20
    """Bytes kept of each output stream of a command; the rest is read, dropped and counted."""
    read_limit: int = 64 << 20
    """Largest file that `read` returns, in bytes."""

    @property
    def box_lifetime_s(self) -> float | None:
        return float(self.lifetime_s)

    def __post_init__(self) -> None:
        for name in ("cpu", "memory_mb", "idle_timeout_s", "output_limit", "read_limit"):
            if getattr(self, name) < 0:
                raise UsageError(f"runtime.{name} is {getattr(self, name)}; set it to 0 or more")
        for name in ("start_timeout_s", "creates_per_s"):
            if getattr(self, name) <= 0:
                raise UsageError(f"runtime.{name} is {getattr(self, name)}; set it above 0")
        if not 1 <= self.lifetime_s <= _DAY_S:
            raise UsageError(f"runtime.lifetime_s is {self.lifetime_s}; Modal allows 1 to {_DAY_S}")
        if any(not 1 <= port <= 65535 for port in self.ports):
            raise UsageError(f"runtime.ports has a port outside of 1 to 65535: {self.ports}")
        if self.ports and self.block_network:
            raise UsageError("runtime.ports needs a network, which runtime.block_network takes away; set one of them")
        if not _NAME.fullmatch(self.app):
            raise UsageError(f"runtime.app is {self.app!r}; Modal allows 1 to 63 letters, digits, '-', '.' and '_'")
        for place in (self.directory, *self.watched, *self.ignored):
            if not place.startswith("/"):
                raise UsageError(f"{place!r} is no place in a box; give an absolute path")
        if "/" in (self.directory, *self.ignored):
            raise UsageError("runtime.directory and runtime.ignored cannot be the whole box; give paths below /")
