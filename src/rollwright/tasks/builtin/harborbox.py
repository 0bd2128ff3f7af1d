"""What a Harbor task does in its box: files in, scripts run, the reward out. The reward is read strictly: what is not
one finite number is no zero but a broken task."""

from __future__ import annotations

import io
import math
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from rollwright.runtimes import Ending, ExecResult, Runtime
from rollwright.tasks.threads import HOOK_THREADS
from rollwright.wire import RuntimeFault, TaskBroken

_FILES_S = 60.0
_LAST_WORDS = 500
_LONGEST_REWARD = 4096
_EMPTY_AND_UNPACK = 'if [ "$2" = yes ]; then rm -rf -- "$1"; fi && mkdir -p -- "$1" && tar -xf - -C "$1"'
_EXECUTE = 'chmod +x -- "$1" && exec "$1"'
_READ = 'for name in txt json; do echo "$name"; [ -f "$1/reward.$name" ] && head -c "$2" "$1/reward.$name"; echo; done'
_BETWEEN = b"\njson\n"


@dataclass(frozen=True, slots=True)
class Places:
    """Directories of a task in its box. Scripts are told them as TESTS_DIR, VERIFIER_DIR and SOLUTION_DIR."""

    tests: str
    verifier: str
    solution: str

    @classmethod
    async def below_workspace(cls, runtime: Runtime) -> Self:
        """In boxes where nothing else may be written."""
        told = await runtime.run(["pwd"], timeout_s=_FILES_S)
        base = told.text.strip()
        if not told.ok or not base.startswith("/"):
            raise RuntimeFault(f"{runtime.name} does not say where its workspace is")
        return cls(f"{base}/.harbor/tests", f"{base}/.harbor/verifier", f"{base}/.harbor/solution")

    @property
    def env(self) -> dict[str, str]:
        return {"TESTS_DIR": self.tests, "VERIFIER_DIR": self.verifier, "SOLUTION_DIR": self.solution}


OUTSIDE = Places("/tests", "/logs/verifier", "/solution")
"""Where the format has them, in a container."""


async def put_directory(runtime: Runtime, source: Path | None, target: str, *, empty_first: bool = False) -> None:
    """Bring the files below `source` into the box, none if it is None or not there. `empty_first` takes away what is
    in `target`."""
    packed = await HOOK_THREADS.run(lambda: _packed(source))
    words = ["sh", "-c", _EMPTY_AND_UNPACK, "sh", target, "yes" if empty_first else "no"]
    result = await runtime.run(words, stdin=packed, timeout_s=_FILES_S)
    if not result.ok:
        raise RuntimeFault(f"files did not get into {target} of {runtime.name}: {_last_words(result)}")


def _packed(source: Path | None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        if source is not None and source.is_dir():
            for path in sorted(source.iterdir()):
                tar.add(path, path.name, filter=_nobodys)
    return out.getvalue()


def _nobodys(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


async def run_in_place(
    runtime: Runtime, script: str, places: Places, env: Mapping[str, str], timeout_s: float
) -> ExecResult:
    """Run a script of the task in the workspace. What it ends with is its own affair; that it did not end is ours."""
    words = ["sh", "-c", _EXECUTE, "sh", script]
    result = await runtime.run(words, env={**env, **places.env}, timeout_s=timeout_s)
    if result.ending is Ending.TIMED_OUT:
        raise TaskBroken(f"{script} did not end within {timeout_s:g} s: {_last_words(result)}")
    return result


async def read_reward(runtime: Runtime, directory: str, tested: ExecResult) -> float:
    """The number that the tests wrote, to reward.txt or reward.json. `tested` is how they ended, for words."""
    told = await runtime.run(["sh", "-c", _READ, "sh", directory, str(_LONGEST_REWARD)], timeout_s=_FILES_S)
    text, json = told.stdout.removeprefix(b"txt\n").split(_BETWEEN, 1) if _BETWEEN in told.stdout else (b"", b"")
    rewards = []
    if text.strip():
        rewards.append(_number(text.decode("utf-8", "replace").strip()))
    if json.strip():
        rewards.append(_in_json(json.strip()))
    if not rewards:
        raise TaskBroken(f"the tests wrote no reward; they ended with {tested.exit_code}: {_last_words(tested)}")
    if rewards[0] != rewards[-1]:
        raise TaskBroken(f"the tests wrote two rewards that differ: {rewards[0]:g} and {rewards[-1]:g}")
    return rewards[0]


def _in_json(data: bytes) -> float:
    try:
        named = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise TaskBroken(f"reward.json is not an object of numbers: {error}") from error
    if "reward" in named:
        return _number(named["reward"])
    if len(named) == 1:
        return _number(next(iter(named.values())))
    raise TaskBroken(f"reward.json names {len(named)} rewards, none of them 'reward'; which one counts is not said")


def _number(said: Any) -> float:
    try:
        # Python reads more than the format means by a number: switches, spaces, underscores, infinities.
        value = math.nan if isinstance(said, bool) or "_" in str(said) else float(said)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise TaskBroken(f"the tests wrote the reward {str(said)[:80]!r}, which is not a finite number")
    return value


def _last_words(result: ExecResult) -> str:
    said = (result.stderr.strip() or result.stdout.strip()).decode("utf-8", "replace")
    return said[-_LAST_WORDS:] or "nothing was printed"
