"""What a box looks like from outside, and how two looks differ. A reset is believed only where they do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

_SHOWN = 5


class BoxState(msgspec.Struct, frozen=True):
    """Everything that one user of a box could leave for the next. Kinds fill in what they can see; what a kind cannot
    see, its documentation says."""

    files: Mapping[str, str] = {}
    """Every path below the places that programs in the box may write, with type, mode, owner, size, link target and
    time or digest: a word that changes when the path does."""
    processes: tuple[str, ...] = ()
    """Programs that run in the box, besides those that belong to the box itself."""
    ports: tuple[str, ...] = ()
    """Where something listens inside the box."""
    environment: Mapping[str, str] = {}
    """What a program is started with, without what changes from call to call."""
    mounts: tuple[str, ...] = ()
    """What is mounted where."""
    kernel: tuple[str, ...] = ()
    """What else the kernel keeps for the box: objects of IPC, and settings that programs in it can change."""


def differences(fresh: BoxState, now: BoxState) -> list[str]:
    """What is there and was not, or was and is not, in words; empty where the two are alike."""
    if fresh == now:  # As nearly always: nothing has to be told then.
        return []
    found = [*_changed("file", fresh.files, now.files), *_changed("variable", fresh.environment, now.environment)]
    for what in ("processes", "ports", "mounts", "kernel"):
        # Counted: a second mount at the same place looks like the first.
        before, after = Counter(getattr(fresh, what)), Counter(getattr(now, what))
        found += [f"{what}: {item} is new" for item in sorted((after - before).elements())]
        found += [f"{what}: {item} is gone" for item in sorted((before - after).elements())]
    return found


def told(found: list[str]) -> str:
    """A few of the differences, for a log line."""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return "; ".join(found[:_SHOWN]) + more


def _changed(what: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(before.keys() | after.keys()):
        if name not in before:
            yield f"{what} {name} is new"
        elif name not in after:
            yield f"{what} {name} is gone"
        elif before[name] != after[name]:
            yield f"{what} {name} was {before[name]} and is {after[name]}"
