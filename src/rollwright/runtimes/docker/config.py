"""The settings of a container box. Importing this loads no client: the factory names every kind, used or not."""

from __future__ import annotations

import re
from enum import StrEnum

from rollwright.runtimes.contract import RuntimeConfig
from rollwright.wire import UsageError

_RANGES = {"memory_mb": 16, "pids": 16, "open_files": 64, "shm_mb": 1, "output_limit": 0, "read_limit": 0}
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_.-]+(:\d{1,5})?\Z|\[[0-9a-fA-F:]+\](:\d{1,5})?\Z")


class Network(StrEnum):
    """What a program in the box can reach besides the addresses that Rollwright forwards."""

    NONE = "none"
    ALLOW = "allow"
    FULL = "full"


class DockerConfig(RuntimeConfig, frozen=True, kw_only=True, tag_field="kind", tag="docker"):
    """A container of a Docker-compatible engine. The image needs `sh`, `sleep`, `cat`, `mkdir`, `grep` and `tr`."""

    image: str = "python:3.11-slim"
    """What the box is made of; scripts run with its `python3`."""
    build: str = ""
    """A directory with a Dockerfile to build the image from, once for each content; it counts instead of `image`."""
    pull: bool = True
    """Fetch the image where the engine does not have it. Images that need a login are pulled ahead of time."""
    workdir: str = "/workspace"
    """The workspace inside the box, made where the image lacks it. What the image has there stays visible."""
    user: str = ""
    """Who programs run as, `name` or `uid:gid` of the image; empty is root of the container."""
    read_only: bool = False
    """Nothing but the workspace, HOME and /tmp can be written; all three live in memory then."""
    cpus: float = 1.0
    """Cores that the whole box may use."""
    memory_mb: int = 2048
    """Hard limit of the whole box, files in HOME and /tmp included; programs are killed beyond it."""
    pids: int = 512
    """Processes and threads of the whole box."""
    open_files: int = 4096
    """Descriptors of each process."""
    shm_mb: int = 64
    """Size of /dev/shm."""
    network: Network = Network.NONE
    """`none`; `allow`: HTTP and HTTPS to `allow_hosts` through a proxy of ours; `full`: a network of the box's own."""
    allow_hosts: tuple[str, ...] = ()
    """For `allow`: `host`, `*.domain` (its subdomains), or either with `:port`; without a port, 80 and 443."""
    network_name: str = ""
    """For `full`: an existing network of the engine to join instead of one made for the box."""
    socket: str = ""
    """The engine's address, `unix:///path`, `/path` or `tcp://host:port`; empty asks DOCKER_HOST, then usual places."""
    allow_env: tuple[str, ...] = ()
    """Names of further host variables that programs in the box may see."""
    output_limit: int = 1 << 20
    """Bytes kept of each output stream of a command; the rest is read, dropped and counted."""
    read_limit: int = 64 << 20
    """Largest file that `read` returns, in bytes."""
    start_timeout_s: float = 120.0
    """For making and starting a container; fetching its image is not part of it."""

    def __post_init__(self) -> None:
        for name, least in _RANGES.items():
            if getattr(self, name) < least:
                raise UsageError(f"runtime 'docker' needs {name} of at least {least}, not {getattr(self, name)}")
        if not 0.01 <= self.cpus <= 4096:
            raise UsageError(f"runtime 'docker' needs cpus between 0.01 and 4096, not {self.cpus:g}")
        if not self.start_timeout_s > 0:
            raise UsageError(f"runtime 'docker' needs a start_timeout_s above 0, not {self.start_timeout_s:g}")
        if not self.image or self.image.startswith("-"):
            raise UsageError(f"runtime 'docker' needs the name of an image, not {self.image!r}")
        if not self.workdir.startswith("/") or self.workdir.rstrip("/") in ("", "/tmp"):
            raise UsageError(f"runtime 'docker' needs an absolute workdir below the root, not {self.workdir!r}")
        self._check_network()

    def _check_network(self) -> None:
        if self.allow_hosts and self.network != Network.ALLOW:
            raise UsageError("runtime 'docker' has allow_hosts, which only counts with network 'allow'")
        if self.network_name and self.network != Network.FULL:
            raise UsageError("runtime 'docker' has a network_name, which only counts with network 'full'")
        for host in self.allow_hosts:
            if not _HOST.match(host):
                raise UsageError(f"allow_hosts of runtime 'docker' holds {host!r}; write host, *.domain or host:port")
