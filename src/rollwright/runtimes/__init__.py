"""Boxes that run commands. A runtime knows nothing of rollouts, rewards or tokens."""

from .contract import Ending as Ending
from .contract import ExecResult as ExecResult
from .contract import Process as Process
from .contract import Reach as Reach
from .contract import Runtime as Runtime
from .contract import RuntimeConfig as RuntimeConfig
from .contract import Warm as Warm
from .factory import RUNTIME_KINDS as RUNTIME_KINDS
from .factory import make_runtime as make_runtime
from .factory import runtime_config as runtime_config
from .local.shield import shielded as shielded
from .pool import PoolConfig as PoolConfig
from .pool import PoolStats as PoolStats
from .pool import RuntimePool as RuntimePool
from .slots import CpuSlots as CpuSlots
from .subprocess import SubprocessConfig as SubprocessConfig
from .subprocess import SubprocessRuntime as SubprocessRuntime
