"""An environment served by worker processes behind a broker, to clients that see it as if it were their own.

A name is looked up when it is asked for: a broker needs few of them, and starts while others wait for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import EnvClient as EnvClient
    from .environments import EnvironmentSpec as EnvironmentSpec
    from .protocol import ServerLost as ServerLost
    from .protocol import Trouble as Trouble
    from .protocol import Unserved as Unserved
    from .server import Server as Server
    from .server import serving as serving
    from .settings import BrokerSettings as BrokerSettings
    from .slots import SlotSettings as SlotSettings
    from .wiring import Address as Address

_HOMES = {
    "Address": "wiring",
    "BrokerSettings": "settings",
    "EnvClient": "client",
    "EnvironmentSpec": "environments",
    "Server": "server",
    "ServerLost": "protocol",
    "SlotSettings": "slots",
    "Trouble": "protocol",
    "Unserved": "protocol",
    "serving": "server",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
