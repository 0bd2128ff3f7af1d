"""A user of a box who leaves as much behind as it can, and the look of the next one. For tests of resets.

Every step is tried and none has to succeed: a box may forbid it. All that is left outside of the box's own directories
has the box's mark in its name, so that it is recognised, does no harm where a box does not keep it in, and can be
looked for from inside. Modes of files outside of the box are never changed: no kind could undo that for the host.
"""

from __future__ import annotations

import random

from rollwright.wire import RuntimeFault

from .asking import LISTEN
from .contract import Ending, ExecResult, Runtime
from .state import BoxState, differences, told

_PATIENCE_S = 300.0

_ELSEWHERE = "/ /etc /etc/cron.d /var/spool/cron/crontabs /opt /usr/local/bin /var/tmp /tmp /run /dev/shm .."
"""Places besides the workspace, HOME and TMPDIR, which stand for all that a program might write to."""

_STEPS = {
    "writes outside of its workspace": f'for place in {_ELSEWHERE}; do echo x > "$place/$MARK"; done',
    "edits HOME": """
        cd "$HOME" && for file in .profile .bashrc ".$MARK"; do echo 'export POISONED=1' >> "$file"; done
        mkdir -p .config/x .local/bin && echo 'exit 7' > .local/bin/ls && chmod 755 .local/bin/ls""",
    "leaves daemons": """
        echo 'while :; do sleep 1000; done' > daemon.sh
        setsid sh daemon.sh "$MARK" > /dev/null 2>&1 < /dev/null &
        (cd / && setsid sh -c 'while :; do sleep 1000; done' "$MARK" > /dev/null 2>&1 < /dev/null &)""",
    "sets crontab-like files": """
        for file in "$HOME/.crontab" "$HOME/.timer" "/etc/cron.d/$MARK" "/var/spool/cron/crontabs/$MARK"; do
            echo '# @reboot true' > "$file"; done""",
    "fills the temporary directory": """
        for place in "${TMPDIR-/tmp}" /tmp; do head -c "$FILL_BYTES" /dev/zero > "$place/$MARK.fill"; done""",
    "makes links out of the workspace": """
        ln -s / root; ln -s /etc/passwd file; ln -s ../.. up; ln -s "$HOME" home; ln -s nowhere dangling
        mkfifo pipe""",
    "makes a tree of many files": """
        mkdir tree && cd tree || exit
        count=0; while [ $count -lt "$FILES" ]; do
            [ $((count % 1000)) -eq 0 ] && mkdir d$count && here=d$count
            : > $here/f$count; count=$((count + 1)); done""",
    "changes permissions": """
        umask 0; mkdir -p locked/deep && touch locked/deep/file && chmod 4777 locked/deep/file
        chmod 000 locked/deep locked; chmod 777 "$HOME" "${TMPDIR-$HOME}"; chmod 500 .""",
    # From HOME, since the workspace cannot be written any more.
    "binds a port": f'cd "$HOME"; {LISTEN}',
}
"""What is done, in this order, each by a shell of its own in the workspace."""

_LOOK = f"""
for name in root file up home dangling pipe tree locked daemon.sh; do ls -Ad ./$name 2> /dev/null; done
for name in .crontab .timer .local/bin/ls ".$MARK"; do ls -Ad "$HOME/$name" 2> /dev/null; done
ls -A "${{TMPDIR-/tmp}}" | grep -F "$MARK"
grep -s POISONED "$HOME/.profile" "$HOME/.bashrc"
for place in {_ELSEWHERE}; do ls -A $place 2> /dev/null | grep -F "$MARK"; done
env | grep POISONED
printf '%s\\n' "$MARK" | grep -F -l -f - /proc/[0-9]*/cmdline 2> /dev/null
touch x "$HOME/x" "${{TMPDIR-/tmp}}/x" && rm x "$HOME/x" "${{TMPDIR-/tmp}}/x" || echo cannot write
true
"""


async def poison(runtime: Runtime, *, files: int = 100_000, fill_mb: int = 16) -> list[str]:
    """Leave everything in the box that a careless or hostile user could leave; what was tried, in words."""
    env = {"FILES": str(files), "FILL_BYTES": str(fill_mb << 20)}
    for what, script in _STEPS.items():
        script = script.replace("PORT", str(random.randint(20000, 60000)))
        result = await _asked(runtime, script, env)
        if result.ending is Ending.TIMED_OUT:
            raise RuntimeFault(f"a program that {what} did not end: {result}")
    return list(_STEPS)


async def check_unpoisoned(runtime: Runtime, fresh: BoxState) -> None:
    """AssertionError where the box does not look as it did when it was `fresh`, from outside or from inside."""
    found = differences(fresh, await runtime.inspect())
    assert not found, f"the box differs from a fresh one: {told(found)}"
    seen = await _asked(runtime, _LOOK, {})
    assert seen.ok, f"a look from inside failed: {seen}"
    assert seen.text == "", f"left for the next user: {seen.text[:1000]}"


async def _asked(runtime: Runtime, script: str, env: dict[str, str]) -> ExecResult:
    # The mark travels in the environment and through a pipe, so that a look does not find its own command line.
    env = {**env, "MARK": f"rollwright-poison-{runtime.name}"}
    return await runtime.run(["sh", "-c", script], env=env, timeout_s=_PATIENCE_S)
