"""How workers are laid out on a Ray cluster."""

from __future__ import annotations

import msgspec


class RaySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Workers on a Ray cluster."""

    cluster: str = "auto"
    """HOST:PORT of the cluster's head; auto finds the cluster that this machine belongs to."""
    slice_workers: int = 4
    """Workers of one slice, which is what one supervisor holds and Ray places as a whole on one node."""
    worker_cpus: float = 1.0
    """CPUs that Ray sets aside for each worker."""
    worker_memory_mb: int = 2048
    """Memory that Ray sets aside for each worker. `slots.memory_mb` is what holds a worker to it."""
    max_restarts: int = 5
    """Deaths of one supervisor, without health in between, after which its slice is given up."""
    backoff_s: float = 0.5
    """Pause before a supervisor that died twice in a row gets workers again; it doubles from there."""
    max_backoff_s: float = 30.0
    health_s: float = 60.0
    """A supervisor that was well for so long has its deaths forgotten."""
    silence_s: float = 3.0
    """A supervisor that does not answer for so long is given up with its workers. Ray needs about 14 s to see that a
    node is gone."""
