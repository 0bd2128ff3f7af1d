"""How a trainer tells of new weights: one small file in a directory that both can see, replaced whole each time.

    policy.json      {"version": 7, "path": "/weights/step-7"}

Where the trainer is reached over a socket, the orchestrator's end of the socket writes the file. Versions count from 0,
which is what the engines were started with; version v is what training on the batches up to step v has made.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from rollwright.wire import WireError
from rollwright.wire.durable import replace_file

from .contracts import PolicyVersion

NAME = "policy.json"


def write_policy(directory: Path, policy: PolicyVersion) -> None:
    """Blocking. The newest version wins: an older one that comes late changes nothing."""
    known = read_policy(directory)
    if known is not None and known.version >= policy.version:
        return
    replace_file(directory / NAME, msgspec.json.encode(policy) + b"\n")


def read_policy(directory: Path) -> PolicyVersion | None:
    """The newest version that was published; None if none was."""
    try:
        text = (directory / NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        policy = msgspec.json.decode(text, type=PolicyVersion)
    except msgspec.DecodeError as error:
        raise WireError(f"{NAME} in {directory.name} does not tell a policy version: {error}") from error
    if policy.version < 0:
        raise WireError(f"{NAME} in {directory.name} tells version {policy.version}; versions count from 0")
    return policy


class PolicyWatch:
    """The versions that appear in a directory."""

    def __init__(self, directory: Path, *, poll_s: float = 0.2) -> None:
        self._directory = directory
        self._poll_s = poll_s

    async def versions(self) -> AsyncIterator[PolicyVersion]:
        newest = -1
        while True:
            policy = await asyncio.to_thread(read_policy, self._directory)
            if policy is not None and policy.version > newest:
                newest = policy.version
                yield policy
            await asyncio.sleep(self._poll_s)
