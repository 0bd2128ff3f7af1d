"""The longest-prefix rule: a call whose prompt begins with the whole tape of another call continues that tape.

A trace says for each call which tape its prompt continues, as far as the messages tell. A program that rewrites what no
template shows (the id of a tool call, say) opens a new conversation by its messages and goes on with the old one by its
tokens, and tokens are what is trained: left apart, the same context would be trained twice over.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rollwright.wire import TokenSegment

_NEWEST = 32
"""Of the calls that continue one tape, how many are looked at. A program goes on with what it did lately, and one with
thousands of sub-agents is not to be compared each with each."""


def rejoined(tapes: Mapping[int, TokenSegment]) -> dict[int, TokenSegment]:
    """The same tapes, each resting on the longest earlier one that its prompt begins with, among those that continue
    the one it was recorded to rest on. Where nothing else continues that one there is nothing to look at."""
    joined: dict[int, TokenSegment] = {}
    children: dict[int, list[int]] = {}
    # Along one tape the routed experts have one shape; where a trace has several, its own word is taken.
    alike = len({tape.routing.rows.shape[1:] for tape in tapes.values() if tape.routing is not None}) <= 1
    for call, tape in tapes.items():
        joined[call] = _rejoined(tape, joined, children) if alike and tape.base in children else tape
        children.setdefault(joined[call].base, []).append(call)
    return joined


def _rejoined(tape: TokenSegment, joined: dict[int, TokenSegment], children: dict[int, list[int]]) -> TokenSegment:
    prompt = tape.ids[: int(np.argmax(tape.sampled))] if tape.sampled.any() else tape.ids
    longest, base = 0, tape.base
    reached = [(0, tape.base)]
    while reached:
        covered, parent = reached.pop()
        for call in children.get(parent, ())[-_NEWEST:]:
            ids = joined[call].ids
            rest = prompt[covered : covered + len(ids)]
            # The last id decides nearly always, so that whole tapes are seldom compared.
            if len(rest) == len(ids) and (not len(ids) or (rest[-1] == ids[-1] and np.array_equal(rest, ids))):
                reached.append((covered + len(ids), call))
                if covered + len(ids) > 0:
                    longest, base = max((longest, base), (covered + len(ids), call))
    if not longest:
        return tape
    columns = (tape.ids[longest:], tape.sampled[longest:], tape.logprobs[longest:])
    return TokenSegment(base, *columns, tape.routing)
