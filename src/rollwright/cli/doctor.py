"""`rollwright doctor`: what works on this machine, and what to do about what does not.

It installs nothing, and changes nothing unless `--sweep` is asked for. Heavy packages are looked for, never imported.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence

import msgspec

from rollwright import telemetry
from rollwright.dialects import sweep_spills
from rollwright.runtimes.sweep import sweep_all
from rollwright.wire import RollwrightError

from . import flags, probes
from .fields import settings_of
from .probes import Finding, State, counted
from .talk import Talk, result

PROBE_WITHIN_S = 20.0


class DoctorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Say what works on this machine."""

    base_url: str = ""
    """Also ask this endpoint whether it answers."""
    model: str = ""
    """The model to ask the endpoint for."""
    sweep: bool = False
    """Free what killed runs left behind: processes, directories, sandboxes, containers, remote boxes, images."""
    json: bool = False
    """Print the findings as one line of JSON on stdout."""
    debug: bool = False
    """Show the traceback of an error."""


class Swept(msgspec.Struct, frozen=True):
    """What a sweep did."""

    freed: tuple[str, ...]
    """Names of boxes."""
    failed: Mapping[str, str]
    """Those that could not be freed, with the reason."""
    image_directories: int
    """Directories of images that were removed."""


def main(argv: Sequence[str], talk: Talk) -> int:
    known, aliases = settings_of(DoctorSettings), {"-m": "model"}
    line = flags.cut("doctor", argv, known, aliases)
    if line.help:
        flags.print_help(DoctorSettings(), "rollwright doctor", aliases, DoctorSettings.__doc__ or "")
        return 0
    if line.words or line.files:
        from rollwright.wire import UsageError

        raise UsageError("doctor takes no words, only flags; see: rollwright doctor --help")
    flags.checked(line.given, known)
    settings = flags.apply(DoctorSettings(), line.given, known, "rollwright doctor")
    findings, swept = telemetry.run(_examined(settings))
    _tell(findings, swept, settings.json, talk)
    return 1 if any(finding.state is State.BROKEN for finding in findings) else 0


async def _examined(settings: DoctorSettings) -> tuple[list[Finding], Swept | None]:
    """Every probe at once, each in a thread and within its own time; a sweep first, so that they see what is left."""
    swept = await _sweep() if settings.sweep else None
    local = [asyncio.to_thread(_guarded, probe) for probe in probes.ALL]
    found = [_event_loop(), *await asyncio.gather(*local)]
    if settings.base_url:
        found.append(await _endpoint(settings))
    if swept is not None:
        found.append(_swept(swept))
    return found, swept


async def _sweep() -> Swept:
    boxes = await sweep_all()
    return Swept(boxes.freed, boxes.failed, await asyncio.to_thread(sweep_spills))


def _guarded(probe: Callable[[], Finding]) -> Finding:
    try:
        return probe()
    except Exception as error:  # The border: one probe that breaks must not hide what the others found.
        return Finding(probe.__name__.replace("_", " "), State.BROKEN, f"{type(error).__name__}: {error}")


def _swept(swept: Swept) -> Finding:
    what = f"{len(swept.freed)} freed" + (f": {', '.join(swept.freed)}" if swept.freed else "")
    if swept.image_directories:
        what += f"; {counted(swept.image_directories, 'directory', 'directories')} of images removed"
    if not swept.failed:
        return Finding("sweep", State.OK, what)
    why = "; ".join(f"{name}: {reason}" for name, reason in swept.failed.items())
    return Finding(
        "sweep", State.BROKEN, f"{what}, {len(swept.failed)} not ({why})", "free those by hand, or try again"
    )


def _event_loop() -> Finding:
    kind = type(asyncio.get_running_loop())
    name = f"{kind.__module__}.{kind.__name__}"
    if name.startswith("uvloop"):
        return Finding("event loop", State.OK, name)
    return Finding("event loop", State.MISSING, name, "install uvloop; without it every call costs more")


async def _endpoint(settings: DoctorSettings) -> Finding:
    from rollwright.engines.config import EngineConfig, RelayConfig
    from rollwright.engines.factory import open_engine

    relay = RelayConfig(base_url=settings.base_url, max_retries=0, deadline_s=PROBE_WITHIN_S)
    config = EngineConfig(kind="relay", relay=relay)
    try:
        async with asyncio.timeout(PROBE_WITHIN_S), open_engine(config, settings.model or "unnamed") as engine:
            await engine.probe()
    except (RollwrightError, TimeoutError) as error:
        told = str(error) or f"no answer within {PROBE_WITHIN_S:g} s"
        return Finding("endpoint", State.BROKEN, told, "check the address, the key and the model (-m)")
    return Finding("endpoint", State.OK, f"{settings.base_url} answers")


def _tell(findings: Sequence[Finding], swept: Swept | None, as_json: bool, talk: Talk) -> None:
    width = max(len(finding.name) for finding in findings)
    lines = [_line(finding, width) for finding in findings]
    if as_json:
        talk.say("\n".join(lines))
        table = {"python": sys.version.split()[0], "findings": findings, "swept": swept}
        result(msgspec.json.encode(table).decode())
    else:
        result("\n".join(lines))


def _line(finding: Finding, width: int) -> str:
    step = f"; {finding.next_step}" if finding.next_step else ""
    return f"{finding.state.value:<8} {finding.name:<{width}}  {finding.what}{step}"
