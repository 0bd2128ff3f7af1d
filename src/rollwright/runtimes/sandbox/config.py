"""The settings of a sandbox."""

from __future__ import annotations

from typing import Literal

from rollwright.runtimes.contract import RuntimeConfig
from rollwright.wire import UsageError


class SandboxConfig(RuntimeConfig, frozen=True, kw_only=True, tag_field="kind", tag="sandbox"):
    """A box of Linux namespaces on this machine, made by a warden process, and by bubblewrap where the kernel refuses
    it to us. Zero in a limit means no limit of ours."""

    network: Literal["none", "full"] = "none"
    """`none`: loopback of its own and the ports that Rollwright forwards; `full`: the network of this host."""
    workspace_from: str = ""
    """A directory whose content every fresh workspace shows. It is never written: changes lie in a layer above it."""
    visible: tuple[str, ...] = ()
    """Further directories of this host that programs may read. Without them the box shows the system's programs and
    libraries (/usr, /etc, /opt), the interpreters of scripts and Rollwright itself, and nobody's home."""
    allow_env: tuple[str, ...] = ()
    """Names of further host variables that programs in the box may see."""
    memory_mb: int = 4096
    """Memory of the whole box, files in memory included; of each process where no control group can be had."""
    cpus: float = 0.0
    """Cores that the whole box may use at a time; needs a control group."""
    pids: int = 512
    """Processes and threads that the box may have at a time; needs a control group."""
    disk_mb: int = 1024
    """Bytes, in MB, of each place that programs may write: workspace, HOME, /tmp, /dev/shm. They lie in memory."""
    disk_files: int = 200_000
    """Files and directories of each of these places."""
    cpu_s: int = 0
    """CPU time of each process; it is ended by SIGXCPU beyond it."""
    open_files: int = 4096
    """Descriptors of each process."""
    output_limit: int = 1 << 20
    """Bytes kept of each output stream of a command; the rest is read, dropped and counted."""
    read_limit: int = 64 << 20
    """Largest file that `read` returns, in bytes."""

    def __post_init__(self) -> None:
        for name in ("memory_mb", "cpus", "pids", "cpu_s", "open_files", "output_limit", "read_limit"):
            if getattr(self, name) < 0:
                raise UsageError(f"runtime.{name} is {getattr(self, name)}; set it to 0 or more")
        for name in ("disk_mb", "disk_files"):
            if getattr(self, name) < 1:
                raise UsageError(f"runtime.{name} is {getattr(self, name)}; set it to 1 or more")
        for path in filter(None, (self.workspace_from, *self.visible)):
            if not path.startswith("/"):
                raise UsageError(f"runtime path {path!r} is relative; give the whole path")
