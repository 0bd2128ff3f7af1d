"""Boxes that outlive a rollout, handed out only when a look at them proves that they are as new."""

from .boxes import CreationPaused as CreationPaused
from .boxes import PoolClosed as PoolClosed
from .config import PoolConfig as PoolConfig
from .pool import Lease as Lease
from .pool import RuntimePool as RuntimePool
from .stats import PoolStats as PoolStats
