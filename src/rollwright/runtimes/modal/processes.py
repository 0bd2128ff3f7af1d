"""Shell programs for the inside of a sandbox that has process ids of its own: everything in it that is not the box's
own belongs to its user. They are built from what `sh` has in itself, because a program started for the search would be
found by it. `$0` is the directory of the box."""

from __future__ import annotations

import shlex

_STRAYS = """
strays=
for p in /proc/[0-9]*; do
  pid=${p#/proc/}
  [ "$pid" = $$ ] && continue
  { read -r line < "$p/stat"; } 2>/dev/null || continue
  set -- ${line##*) }
  case "$1" in Z | X) continue ;; esac
  case "$own" in *" $pid:${20} "*) continue ;; esac
  strays="$strays $pid:${20}"
done
"""
"""Collects every live process but this one and those in `$own`, as `pid:start`. It uses up the arguments."""

OWN = f"""
n=0
until [ -e "$0/control/up" ]; do n=$((n + 1)); [ $n -lt 400 ] || exit 3; sleep 0.05; done
own=
{_STRAYS}
echo "rollwright own $strays"
"""
"""Which processes are the box's own, asked once, when its first process has come up."""

END_STRAYS = f"""
own=" $1 " n=0
while :; do
  {_STRAYS}
  [ -n "$strays" ] || break
  n=$((n + 1))
  [ $n -lt 200 ] || {{ echo "processes survive being killed:$strays"; exit 3; }}
  for one in $strays; do kill -9 "${{one%%:*}}" 2>/dev/null; done
  [ $n -lt 3 ] || sleep 0.05
done
echo "rollwright ended"
"""
"""Ends them, until a look finds none."""


def script_line(program: str, *words: str) -> str:
    """The shell line that runs one of these with `words` as `$0`, `$1`, and so on."""
    return f"exec {shlex.join(['/bin/sh', '-c', program, *words])}"
