"""What a look into a remote box asks for, and what its answer means. Plain functions; box.sh in the box does the
looking."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rollwright.runtimes.state import BoxState
from rollwright.wire import RuntimeFault

NO_SCRIPTS = "4294967295 0"
"""What `cksum` says of nothing."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Where a look goes besides the directories that are ours."""

    places: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    """Not to be looked at, with all that is below."""
    own: str = ""
    """Processes of the box itself, as `pid:start` each."""

    def words(self) -> tuple[str, ...]:
        """As box.sh expects them."""
        return (self.own, str(len(self.places)), *self.places, *self.ignored)


def parse_state(answer: bytes, root: str, watch: Watch, scripts: str) -> BoxState:
    """The state that a look tells. `scripts` is what the scripts in the box should look like."""
    told = _told(answer)
    files = {}
    for line in told["file"]:
        word, _, name = line.partition(" ")
        # Emptying a directory changes its time and size, which is not what anybody left there.
        files[name] = ":".join(word.split(":")[:3]) if word.startswith("d") else word
    files[f"{root}/control/box.sh"] = told["tool"][0]
    if told["scripts"][0] != scripts:
        files[f"{root}/scripts"] = told["scripts"][0]
    if told["elsewhere"]:
        files[" ".join(watch.places)] = ", ".join(told["elsewhere"] + told["changed"])
    return BoxState(
        files=files,
        processes=tuple(sorted(told["process"])),
        ports=tuple(sorted(told["port"])),
        environment=dict(line.partition("=")[::2] for line in told["variable"]),
        mounts=tuple(sorted(told["mount"])),
    )


def scripts_of(answer: bytes) -> str:
    """What the scripts in the box look like, from a look at it."""
    return _told(answer)["scripts"][0]


def beyond(born: BoxState, now: BoxState) -> BoxState:
    """What is there and was not when the box was made, and the other way round. Two boxes of one image differ in names,
    addresses and daemons, which no user left; whoever compares a box with another one compares these."""
    gone = dict.fromkeys(born.environment.keys() - now.environment.keys(), "gone")
    new = {name: value for name, value in now.environment.items() if born.environment.get(name) != value}
    return BoxState(
        files=now.files,
        processes=_more(born.processes, now.processes),
        ports=_more(born.ports, now.ports),
        environment=gone | new,
        mounts=_more(born.mounts, now.mounts),
    )


def _more(before: tuple[str, ...], after: tuple[str, ...]) -> tuple[str, ...]:
    was, now = Counter(before), Counter(after)
    return tuple(sorted([*(now - was).elements(), *(f"{item}, gone" for item in (was - now).elements())]))


def _told(answer: bytes) -> dict[str, list[str]]:
    kinds = ("file", "tool", "scripts", "elsewhere", "changed", "process", "port", "mount", "variable")
    told: dict[str, list[str]] = {kind: [] for kind in kinds}
    lines = answer.decode("utf-8", "replace").split("\n")
    for line in lines[1:]:
        kind, _, rest = line.partition(" ")
        if kind in told:
            told[kind].append(rest)
    if lines[-2:] != [".", ""] or not told["tool"] or not told["scripts"]:
        raise RuntimeFault(f"the box told half of its state: {answer[-200:]!r}")
    return told
