"""Answers a trainer's letters out of a depot. No socket here, and nothing is remembered between two letters."""

from __future__ import annotations

import hmac
import mmap
from pathlib import Path

from rollwright.orchestrator.contracts import PolicyVersion
from rollwright.orchestrator.policies import write_policy
from rollwright.wire import WireError
from rollwright.wire.codec import Buffer

from .depot import Depot
from .letters import MAX_CHUNK_BYTES, Ack, Answer, Chunk, Fetch, Publish, Refused, Standing, read_request, write_letter


class Desk:
    def __init__(self, depot: Depot, token: str) -> None:
        """Without a token everybody is let in."""
        self._depot = depot
        self._token = token.encode()

    def answer(self, frame: Buffer) -> list[Buffer]:
        """The frames of the answer. Blocks for what is put on record, which is synced."""
        try:
            request = read_request(frame)
        except WireError:
            return [write_letter(Refused(-1, "malformed"))]
        if self._token and not hmac.compare_digest(request.token.encode(), self._token):
            return [write_letter(Refused(request.number, "token"))]
        if isinstance(request, Fetch):
            return self._chunk(request)
        if isinstance(request, Ack):
            self._depot.acknowledge(request.step)
        if isinstance(request, Publish):
            if request.version < 0:
                return [write_letter(Refused(request.number, "malformed"))]
            write_policy(self._depot.directory, PolicyVersion(request.version, request.path))
        return [write_letter(self._standing(request.number))]

    def _chunk(self, fetch: Fetch) -> list[Buffer]:
        if fetch.offset < 0 or fetch.length < 1:
            return [write_letter(Refused(fetch.number, "malformed"))]
        path = self._depot.find(fetch.step)
        try:
            if path is not None:
                return _map_chunk(path, fetch)
        except FileNotFoundError:
            # Acked and removed since it was found.
            pass
        gone = 0 < fetch.step <= self._depot.last
        return [write_letter(Refused(fetch.number, "gone") if gone else self._standing(fetch.number))]

    def _standing(self, number: int) -> Answer:
        return Standing(number, self._depot.acked, self._depot.last)


def _map_chunk(path: Path, fetch: Fetch) -> list[Buffer]:
    """The bytes as a map of their own, which lives until they are sent: what is on its way is all that is resident."""
    with open(path, "rb") as file:
        total = file.seek(0, 2)
        length = min(fetch.length, MAX_CHUNK_BYTES, total - fetch.offset)
        if length <= 0:
            return [write_letter(Refused(fetch.number, "malformed"))]
        skip = fetch.offset % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(file.fileno(), length + skip, access=mmap.ACCESS_READ, offset=fetch.offset - skip)
    return [write_letter(Chunk(fetch.number, fetch.step, fetch.offset, total)), memoryview(mapped)[skip:]]
