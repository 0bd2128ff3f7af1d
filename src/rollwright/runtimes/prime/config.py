"""The settings of a box at Prime Intellect. The SDK itself reads the key, from PRIME_API_KEY or its file."""

from __future__ import annotations

from typing import Literal

from rollwright.runtimes.contract import RuntimeConfig
from rollwright.wire import UsageError

MAX_LIFETIME_MINUTES = 24 * 60


class PrimeConfig(RuntimeConfig, frozen=True, kw_only=True, tag_field="kind", tag="prime"):
    """A virtual machine at Prime Intellect, made from an image."""

    image: str = "python:3.11-slim"
    """A container image with bash, coreutils, grep and findutils. Scripts need python3, with dependencies also uv."""
    cpu_cores: float = 1.0
    """Cores of the box; as many scripts as it has cores, rounded up, run in it at once."""
    memory_gb: float = 2.0
    """Memory of the box; the vendor ends it beyond."""
    disk_gb: float = 5.0
    """Disk of the box."""
    gpu_count: int = 0
    """GPUs of the box; needs `gpu_type`."""
    gpu_type: str = ""
    """The vendor's name of the GPU; empty without one."""
    region: str = ""
    """The vendor's name of a region; empty lets the vendor choose."""
    team_id: str = ""
    """The team that pays; empty is what the SDK is configured for."""
    network_allow: tuple[str, ...] | None = None
    """Hosts and addresses that the box may reach, nothing else; not given is the whole network."""
    lifetime_minutes: int = 60
    """The vendor ends the box after this. It is lost then."""
    idle_minutes: int = 0
    """The vendor ends a box that lies idle for so long; 0 is never."""
    start_timeout_s: float = 600.0
    """How long creating a box may take, tries and the vendor's building of the image included."""
    creates_per_minute: float = 60.0
    """How many boxes this process asks for in a minute, after a burst of ten."""
    reset: Literal["replace", "clean"] = "replace"
    """How a box is given back: `replace` makes a fresh one in its place, which nothing survives; `clean` ends its
    processes and empties its directories, which is quicker and leaves the rest of the disk to `inspect`."""
    watched: tuple[str, ...] = ("/",)
    """Below which places `inspect` looks for whatever changed, with `reset: clean`; all that is mounted there included.
    A box in which anything has changed there is not used again."""
    ignored: tuple[str, ...] = ()
    """Places below those that the image itself changes, such as the logs of its daemons."""
    directory: str = "/var/rollwright"
    """The directory in the box that is ours: HOME, TMPDIR and the workspace are in it."""
    workdir: str = ""
    """A directory of the image that is the workspace instead. A `clean` reset cannot renew it and is refused."""
    forward_via: str = ""
    """A public address by which the box reaches what `forward` is asked for, `{port}` standing for the port. Empty uses
    a relay through the vendor's connection, which needs python3 in the image."""
    expose_domain: str = ""
    """The domain below which the vendor publishes ports; empty is that of its gateway."""
    output_limit: int = 1 << 20
    """Bytes kept of each output stream of a command; the rest is read, dropped and counted."""
    read_limit: int = 64 << 20
    """Largest file that `read` returns, in bytes."""

    @property
    def box_lifetime_s(self) -> float | None:
        return self.lifetime_minutes * 60.0

    @property
    def reset_is_a_start(self) -> bool:
        return self.reset == "replace"

    def __post_init__(self) -> None:
        for name in ("cpu_cores", "memory_gb", "disk_gb", "start_timeout_s", "creates_per_minute"):
            if getattr(self, name) <= 0:
                raise UsageError(f"runtime.{name} is {getattr(self, name)}; set it above 0")
        for name in ("gpu_count", "idle_minutes", "output_limit", "read_limit"):
            if getattr(self, name) < 0:
                raise UsageError(f"runtime.{name} is {getattr(self, name)}; set it to 0 or more")
        if not 1 <= self.lifetime_minutes <= MAX_LIFETIME_MINUTES:
            raise UsageError(
                f"runtime.lifetime_minutes is {self.lifetime_minutes}; 1 to {MAX_LIFETIME_MINUTES} it can be"
            )
        self._check_together()

    def _check_together(self) -> None:
        if self.idle_minutes > self.lifetime_minutes:
            raise UsageError("runtime.idle_minutes is over runtime.lifetime_minutes; set it to that or less")
        if bool(self.gpu_count) != bool(self.gpu_type):
            raise UsageError("runtime.gpu_count and runtime.gpu_type go together; give both or neither")
        if self.workdir and self.reset == "clean":
            raise UsageError("runtime.workdir cannot be renewed by runtime.reset=clean; use replace")
        for place in (*self.watched, *self.ignored):
            if not place.startswith("/"):
                raise UsageError(f"{place!r} is no place in a box; give an absolute path")
        for name in ("directory", "workdir"):
            if getattr(self, name) and (not getattr(self, name).startswith("/") or getattr(self, name) == "/"):
                raise UsageError(f"runtime.{name} is {getattr(self, name)!r}; give an absolute path below /")
        if not self.image:
            raise UsageError("runtime.image is empty; name a container image")
