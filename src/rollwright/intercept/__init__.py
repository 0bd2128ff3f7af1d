"""The server that carries model calls between programs and the engine: one port, many rollouts, every dialect."""

from .config import InterceptConfig as InterceptConfig
from .server import Interceptor as Interceptor
