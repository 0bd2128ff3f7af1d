"""Which variables of this process a program in a box may see: an allow-list (law 4), never a deny-list.

What is not named here stays outside: keys, tokens, proxies with passwords, PYTHON* switches, cloud settings. Whatever a
program needs beyond this is given to it by name, in the config or in the call.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from rollwright.wire import RuntimeFault

ALLOWED = ("PATH", "LANG", "LANGUAGE", "TZ", "TERM", "COLORTERM", "COLUMNS", "LINES")
ALLOWED_PREFIXES = ("LC_",)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def host_environment(extra: Sequence[str] = (), host: Mapping[str, str] | None = None) -> dict[str, str]:
    """The allow-listed part of `host` (this process's environment), with `extra` names added to the list."""
    source = os.environ if host is None else host
    names = {*ALLOWED, *extra}
    chosen = {name: value for name, value in source.items() if name in names or name.startswith(ALLOWED_PREFIXES)}
    chosen["PATH"] = chosen.get("PATH") or os.defpath
    return chosen


def checked(env: Mapping[str, str]) -> Mapping[str, str]:
    """`env`, or RuntimeFault where a shell on the way would drop or cut a variable in silence."""
    for name, value in env.items():
        if not _NAME.match(name):
            raise RuntimeFault(f"environment variable name {name!r} is not made of letters, digits and underscores")
        if "\0" in value:
            raise RuntimeFault(f"the value of environment variable {name} holds a NUL byte")
    return env
