"""A directory of batches: one file per step, there whole or not at all, and one small file that says what was acked.

A batch is written under a name that no reader looks for and then renamed, so a crash at any moment leaves at most that
other name behind, which the next writer of the same step overwrites. Bytes are appended and never skipped: a file that
a power cut took before it was synced is short, and a short file is refused by its length. All functions here block.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from rollwright.orchestrator.batches import Batch, decode_batch, encode_batch, length_of, sealed
from rollwright.orchestrator.layout import PRELUDE_BYTES
from rollwright.orchestrator.writing import copy_at, write_at
from rollwright.wire import WireError
from rollwright.wire.codec import Buffer
from rollwright.wire.durable import replace_file, sync_directory
from rollwright.wire.mapping import home_of, map_file

_NAME = re.compile(r"batch-(\d{8,})\.rwb")
_WORTH_A_CALL_BYTES = 64 * 2**10
ACKED = "acked"


def batch_path(directory: Path, step: int) -> Path:
    return directory / f"batch-{step:08d}.rwb"


def steps_in(directory: Path) -> list[int]:
    """The steps whose batch is there, in order."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def last_step(directory: Path) -> int:
    """The newest step that was ever sent from here, whether its batch is still there or not; 0 if none was."""
    return max([read_acked(directory), *steps_in(directory)[-1:]])


def write_batch(directory: Path, batch: Batch, *, sync: bool = True) -> Path:
    """The size of tokens is spent in writes, which let other threads run.

    Synced, it survives a power cut when this returns. It can be read before that: a trainer that shares the machine's
    fate need not wait for the disk.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = batch_path(directory, batch.step)
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            _write_pieces(descriptor, encode_batch(batch))
            os.replace(unfinished, path)
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    if sync:
        sync_directory(directory)
    return path


def read_batch(path: Path) -> Batch:
    """Views of the mapped file. The map lives as long as any of them."""
    # Mapped privately: who makes tensors of the views may write to them, and changes no file by it.
    mapped = map_file(path, private=True)
    try:
        return sealed(decode_batch(mapped))
    except WireError as error:
        raise WireError(f"{path.name}: {error}") from error


def is_whole(path: Path) -> bool:
    """Whether the file has the length that its first bytes tell."""
    with open(path, "rb") as file:
        try:
            return length_of(file.read(PRELUDE_BYTES)) == os.fstat(file.fileno()).st_size
        except WireError:
            return False


def read_acked(directory: Path) -> int:
    """The newest step that the trainer is done with; 0 if it is done with none."""
    try:
        text = (directory / ACKED).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return 0
    if not re.fullmatch(r"\d{1,18}\n", text):
        raise WireError(f"{ACKED} in {directory.name} does not hold the number of a step")
    return int(text)


def write_acked(directory: Path, step: int) -> None:
    """Synced: a trainer that was told that its ack is on record is never sent the batch again."""
    replace_file(directory / ACKED, f"{step}\n".encode())


def _write_pieces(descriptor: int, buffers: Sequence[Buffer]) -> None:
    """What lies in files, such as those of groups, goes from file to file: the kernel takes half the time of a write
    from mapped memory, and none of it becomes resident here."""
    waiting: list[Buffer] = []
    offset = 0
    for buffer in buffers:
        home = home_of(memoryview(buffer)) if len(buffer) >= _WORTH_A_CALL_BYTES else None
        if home is None:
            waiting.append(buffer)
            continue
        offset = write_at(descriptor, offset, waiting)
        copied = copy_at(descriptor, offset, home, len(buffer))
        offset += copied
        waiting = [memoryview(buffer)[copied:]]
    write_at(descriptor, offset, waiting)
