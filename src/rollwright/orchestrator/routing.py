"""Where the routed experts of a branch belong: every row at its absolute position, each copied once.

Decides and copies nothing. The work is one step per payload and one per hole, however long the tape is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from rollwright.wire import TokenSegment
from rollwright.wire.arrays import NAMES, AnyArray

Run = tuple[str, int, list[AnyArray]]
"""The name of a column of a sample, a row of it, and the arrays that lie there one after another from that row on."""


def plan_routing(tapes: Sequence[TokenSegment], ends: Sequence[int]) -> tuple[tuple[str, int, int] | None, list[Run]]:
    """Type, layers and top_k of the routed experts of a branch of `tapes` that end at `ends`, None if no call of it
    brought any, and the runs that make up the rows and the mask of their holes.

    Where two payloads hold the same row the older one stands: it tells how the token was sampled, the newer one only
    how it was read again. The row of a call's last sampled token is known to later payloads alone, so whatever a
    payload says about it is not taken.
    """
    delivered = _Delivered()
    runs: list[Run] = []
    end_of_run = -1
    wires = []
    for tape, end in zip(tapes, ends, strict=True):
        if (routing := tape.routing) is None:
            continue
        start, wire, sampled = routing.start, routing.rows, tape.sampled
        wires.append(wire)
        unknown = 1 if len(sampled) and sampled[-1] else 0
        for first, last in delivered.add(start, min(start + len(wire), end - unknown)):
            if first != end_of_run:
                runs.append(("routed", first, []))
            runs[-1][2].append(wire[first - start : last - start])
            end_of_run = last
    if not wires:
        return None, []
    layers, top_k = wires[0].shape[1:]
    for first, last in delivered.holes(ends[-1]):
        runs.append(("routed_hole", first, [np.ones(last - first, np.bool_)]))
    return (NAMES[np.result_type(*{wire.dtype for wire in wires})], layers, top_k), runs


class _Delivered:
    """Which rows are there: all before `_landed`, but for the holes that calls without routing left."""

    def __init__(self) -> None:
        self._landed = 0
        self._holes: list[tuple[int, int]] = []

    def add(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Of the rows from `start` to `stop`, the runs that were missing until now."""
        landed = self._landed
        taken = self._fill_holes(start, stop) if self._holes else []
        if landed < stop and start < stop:
            if landed < start:
                self._holes.append((landed, start))
                landed = start
            taken.append((landed, stop))
            self._landed = stop
        return taken

    def holes(self, total: int) -> list[tuple[int, int]]:
        return [*self._holes, (self._landed, total)] if self._landed < total else self._holes

    def _fill_holes(self, start: int, stop: int) -> list[tuple[int, int]]:
        begin = bisect_right(self._holes, start, key=lambda run: run[1])
        taken: list[tuple[int, int]] = []
        left: list[tuple[int, int]] = []
        end = begin
        while end < len(self._holes) and self._holes[end][0] < stop:
            first, last = self._holes[end]
            inside = max(first, start), min(last, stop)
            taken.append(inside)
            left += [run for run in ((first, inside[0]), (inside[1], last)) if run[0] < run[1]]
            end += 1
        self._holes[begin:end] = left
        return taken
