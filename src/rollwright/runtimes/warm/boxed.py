"""A warm call in a box that has its zygotes inside: loaded, forked in a CPU slot, or answered cold after all.

`warm="shared"` is answered in the same way here: a fork per call gives the same answer, and keeps nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from rollwright.runtimes.contract import Ending, ExecResult
from rollwright.runtimes.local.environment import checked
from rollwright.runtimes.slots import CpuSlots
from rollwright.wire import RuntimeFault

from .inbox import BoxScript, Inbox, InboxZygote
from .stats import stats
from .zygotes import Unwarm, check_words

_SIGNALS = range(129, 193)


async def run_in_box(
    inbox: Inbox,
    script: BoxScript,
    args: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: bytes,
    timeout_s: float,
    output_limit: int,
    slots: CpuSlots,
    cold: Callable[[], Awaitable[ExecResult]],
) -> ExecResult:
    """The answer of `script`; cold where nothing has it loaded, which is counted by its reason.

    A script that may have begun is never run twice: what cut it off is raised, as RuntimeLost where it was the box.
    """
    stats.calls += 1
    given, why, zygote = checked(env), "", None
    try:
        zygote = await inbox.zygote(script)
    except Unwarm as refusal:
        why = str(refusal)
    async with slots.take() as queue_s:
        if zygote is not None:
            try:
                zygote = await inbox.zygote(script)  # The one of before the wait may be spent.
                result = await _forked(inbox, zygote, args, given, stdin, timeout_s, output_limit)
                return msgspec.structs.replace(result, queue_s=queue_s)
            except Unwarm as refusal:
                why = str(refusal)
        inbox.check()
        stats.cold[why] += 1
        result = await cold()
    return msgspec.structs.replace(result, queue_s=queue_s)


async def _forked(
    inbox: Inbox,
    zygote: InboxZygote,
    args: Sequence[str],
    env: Mapping[str, str],
    stdin: bytes,
    timeout_s: float,
    output_limit: int,
) -> ExecResult:
    check_words(args, env)
    try:
        result = await zygote.run(args, env, stdin, timeout_s, output_limit)
    except RuntimeFault:
        inbox.check()
        raise
    inbox.check()
    stats.forked += 1
    if result.ending is Ending.EXITED and result.exit_code in _SIGNALS:
        # A cold run in these boxes cannot tell such an exit from a signal, and tells it as one.
        result = msgspec.structs.replace(result, ending=Ending.SIGNALLED)
    return result
