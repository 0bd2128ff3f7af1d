"""The client of servers that take token ids and give token ids."""

from .engine import TokensEngine as TokensEngine
from .engine import TokensStats as TokensStats
