"""What is asked of the engine for one box: the container, its environment, its limits and its network. Asks nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollwright.runtimes.local import host_environment
from rollwright.runtimes.local.census import MARK

from .config import DockerConfig, Network

LABEL = "rollwright.box"
HOME = "/home/rollwright"
SHELF = "/opt/rollwright"
"""Where scripts and their packages are seen in the box, read-only."""
DOORS = "/run/rollwright"
"""Where the sockets of forwarded addresses are seen in the box, if they go through the file system."""

# The first process of a container adopts orphans. A shell that waits for a child reaps them; a bare `sleep` would not.
FIRST = "while :; do sleep 2147483647 & wait $!; done"


@dataclass(frozen=True, slots=True)
class Binds:
    """Directories of the host that the box sees; empty where the engine does not share our files."""

    shelf: str = ""
    doors: str = ""

    def words(self) -> list[str]:
        shelf = [f"{self.shelf}:{SHELF}:ro"] if self.shelf else []
        return shelf + ([f"{self.doors}:{DOORS}"] if self.doors else [])


def base_environment(config: DockerConfig, proxy: str = "") -> dict[str, str]:
    """What every program in the box sees besides the image's own variables. The host's PATH means nothing in there."""
    chosen = host_environment(config.allow_env)
    if "PATH" not in config.allow_env:
        del chosen["PATH"]
    given = {"HOME": HOME, "TMPDIR": "/tmp"}
    if proxy:
        for name in ("http_proxy", "https_proxy"):
            given[name] = given[name.upper()] = proxy
        given["no_proxy"] = given["NO_PROXY"] = "localhost,127.0.0.1,::1"
    return chosen | given


def container_spec(config: DockerConfig, name: str, token: str, binds: Binds) -> dict[str, Any]:
    """The body of the request that creates the container of box `name`."""
    return {
        "Image": config.image,
        "Entrypoint": ["sh"],
        "Cmd": ["-c", FIRST],
        "Env": env_words({MARK: f"{token}/0."}),
        "WorkingDir": config.workdir,
        "User": "0",
        "Hostname": "box",
        "Labels": {LABEL: name},
        "Healthcheck": {"Test": ["NONE"]},
        "NetworkDisabled": False,
        "HostConfig": _host_config(config, name, binds),
    }


def network_spec(name: str) -> dict[str, Any]:
    return {"Name": network_of(name), "Labels": {LABEL: name}}


def network_of(name: str) -> str:
    """The private network of box `name`."""
    return f"rollwright-{name}"


def env_words(env: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in env.items()]


def _host_config(config: DockerConfig, name: str, binds: Binds) -> dict[str, Any]:
    memory = config.memory_mb << 20
    writable = [HOME, "/tmp", *([config.workdir] if config.read_only else [])]
    return {
        "NetworkMode": _network_mode(config, name),
        "NanoCpus": int(config.cpus * 1e9),
        "Memory": memory,
        "MemorySwap": memory,
        "PidsLimit": config.pids,
        "ShmSize": config.shm_mb << 20,
        "Ulimits": [
            {"Name": "nofile", "Soft": config.open_files, "Hard": config.open_files},
            {"Name": "core", "Soft": 0, "Hard": 0},
        ],
        "Tmpfs": dict.fromkeys(writable, "rw,exec,nosuid,nodev,mode=1777"),
        "Binds": binds.words(),
        "ReadonlyRootfs": config.read_only,
        "SecurityOpt": ["no-new-privileges"],
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": "no"},
    }


def _network_mode(config: DockerConfig, name: str) -> str:
    if config.network != Network.FULL:
        return "none"
    return config.network_name or network_of(name)
