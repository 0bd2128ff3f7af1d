"""A model that plays a script, behind a real HTTP server: the offline default, and the double for every test."""

from typing import TYPE_CHECKING, Any

from .config import Fault as Fault
from .config import ScriptedConfig as ScriptedConfig
from .process import ScriptedProcess as ScriptedProcess
from .process import scripted_process as scripted_process

if TYPE_CHECKING:
    from .log import CallLog as CallLog
    from .log import Stats as Stats
    from .log import read_log as read_log
    from .policies import Policy as Policy
    from .server import ScriptedServer as ScriptedServer
    from .transcript import write_transcript as write_transcript

_HOMES = {
    "CallLog": "log",
    "Stats": "log",
    "read_log": "log",
    "Policy": "policies",
    "ScriptedServer": "server",
    "write_transcript": "transcript",
}


def __getattr__(name: str) -> Any:
    """The server and what comes with it is imported when it is asked for: settings alone need no web server."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
