"""Files of a box, read and written by programs inside it, so that links, users and places in memory mean what they mean
to the programs there. The engine's own way to files sees neither."""

from __future__ import annotations

from rollwright.wire import RuntimeFault

from .crew import Crew

_FILE_S = 300.0
# A pipe in the place of a file would hold the reader, so the kind is looked at first.
_READ = '[ -f "$1" ] && exec cat -- "$1"; [ -e "$1" ] && echo "not a file" >&2 || echo missing >&2; exit 1'
_WRITE = (
    'mkdir -p -- "${1%/*}/" && if [ -e "$1" ] && [ ! -f "$1" ]; then echo "not a file" >&2; exit 1; fi && cat > "$1"'
)


async def read_file(crew: Crew, path: str, limit: int) -> bytes:
    """The content of a regular file; RuntimeFault where it is none, or is larger than `limit`."""
    words = ["sh", "-c", _READ, "sh", crew.place(path)]
    result = await crew.run(words, cwd="/", output_limit=limit, timeout_s=_FILE_S)
    if not result.ok:
        raise RuntimeFault(f"file {path!r}: {_why(result.stderr)}")
    if result.stdout_dropped:
        raise RuntimeFault(f"file {path!r} is over {limit} bytes; read it in parts with a command")
    return result.stdout


async def write_file(crew: Crew, path: str, data: bytes) -> None:
    """Make or replace a file, and the directories above it."""
    result = await crew.run(["sh", "-c", _WRITE, "sh", crew.place(path)], cwd="/", stdin=data, timeout_s=_FILE_S)
    if not result.ok:
        raise RuntimeFault(f"file {path!r}: {_why(result.stderr)}")


def _why(stderr: bytes) -> str:
    return stderr.decode("utf-8", "replace").strip()[-500:] or "refused"
