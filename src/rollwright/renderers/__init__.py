"""Messages to token ids and back, for one model family at a time. A renderer knows no sockets and no engine."""

from .engine import TokenEngine as TokenEngine
from .engine import load_engine as load_engine
