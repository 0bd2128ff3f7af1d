"""The one shape of a benchmark's answer."""

from __future__ import annotations

import json
import operator
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

Target = tuple[str, float]
_COMPARE = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "==": operator.eq}


def report(name: str, figures: Mapping[str, float], targets: Mapping[str, Target], *, as_json: bool) -> None:
    """Print the answer: a line for people on stderr, and with `as_json` one object as the last line of stdout."""
    met = all(_COMPARE[sign](figures[key], bound) for key, (sign, bound) in targets.items())
    shown = "   ".join(f"{key} {value:,.4g}{_against(key, targets)}" for key, value in figures.items())
    where = _where()
    print(f"{name}   {shown}   {'met' if met else 'MISSED'}   {where}", file=sys.stderr)
    if as_json:
        answer: dict[str, Any] = {
            "benchmark": name,
            "figures": {key: round(value, 6) for key, value in figures.items()},
            "targets": {key: list(target) for key, target in targets.items()},
            "met": met,
            "where": where,
        }
        print(json.dumps(answer), flush=True)


def _against(key: str, targets: Mapping[str, Target]) -> str:
    return f" ({targets[key][0]} {targets[key][1]:g})" if key in targets else ""


def _where() -> dict[str, Any]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {"python": platform.python_version(), "cores": os.cpu_count(), "commit": commit.stdout.strip() or "unknown"}
