"""`rollwright ctl ORDER [VALUE]`: orders to a running server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rollwright import telemetry
from rollwright.serve import EnvClient
from rollwright.wire import UsageError

from . import flags
from .addresses import read_address
from .fields import settings_of
from .talk import Talk, result

ORDERS = ("status", "scale N", "drain [N]", "cancel [LABEL]")


class CtlSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Give an order to a running server: status, scale N, drain [N], or cancel [LABEL]."""

    server: str = ""
    """The directory or file that `rollwright serve` left its address in, or tcp://HOST:PORT with --keys."""
    keys: str = ""
    """The file peer-keys.json that `rollwright keys` wrote, where the server is named by tcp://HOST:PORT."""
    json: bool = False
    """Print the answer as one line of JSON on stdout."""
    debug: bool = False
    """Show the traceback of an error."""


def parsed(argv: Sequence[str]) -> tuple[CtlSettings, list[str]] | None:
    """The settings and the words of the order, or None if the help was asked for and shown."""
    known, aliases = settings_of(CtlSettings), {"-s": "server"}
    line = flags.cut("ctl", argv, known, aliases)
    if line.help:
        flags.print_help(CtlSettings(), "rollwright ctl", aliases, CtlSettings.__doc__ or "")
        return None
    if not 1 <= len(line.words) <= 2:
        raise UsageError(f"ctl takes an order and perhaps a value: {', '.join(ORDERS)}; see: rollwright ctl --help")
    flags.checked(line.given, known)
    settings = flags.apply(CtlSettings(), line.given, known, "rollwright ctl")
    if not settings.server:
        raise UsageError("ctl needs to know the server; add -s DIR, the directory that `rollwright serve` named")
    return settings, list(line.words)


def main(argv: Sequence[str], talk: Talk) -> int:
    found = parsed(argv)
    if found is None:
        return 0
    settings, (order, *value) = found
    answer = telemetry.run(_asked(settings, order, *value))
    if settings.json:
        result(msgspec.json.encode(answer).decode())
    else:
        result(told(answer))
    return 0


async def _asked(settings: CtlSettings, order: str, value: str = "") -> dict[str, Any]:
    client = EnvClient(read_address(settings.server, settings.keys), patience_s=0.0)
    await client.connect()
    try:
        answer: dict[str, Any] = await client.ask(order, value)
        return answer
    finally:
        await client.close()


def told(answer: dict[str, Any]) -> str:
    """The server's state for people."""
    failing = [f"Failing: {answer['failing']}"] if answer["failing"] else []
    counts = ", ".join(f"{count} {name}" for name, count in answer["counts"].items()) or "nothing yet"
    head = f"{answer['requests']} requests, {answer['queued_rollouts']} rollouts queued; {counts}"
    rows = [
        f"  {worker['name']:<12} {worker['phase']:<9} {worker['rollouts']:>4} rollouts  "
        f"{worker['vitals'].get('rss_mb', 0):>6.0f} MB  lag p99 {worker['vitals'].get('lag_p99_ms', 0):.1f} ms"
        for worker in answer["workers"]
    ]
    late = [worker for worker in answer["workers"] if worker["stack"]]
    stalls = [f"  {worker['name']} stands at:\n{worker['stack']}" for worker in late]
    return "\n".join([*failing, head, *rows, *stalls])
