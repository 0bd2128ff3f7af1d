"""An environment served by worker processes behind a broker, to clients that see it as if it were their own."""

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
