"""Boxes that run commands. A runtime knows nothing of rollouts, rewards or tokens."""

from .contract import ExecResult as ExecResult
from .contract import Runtime as Runtime
from .contract import RuntimeConfig as RuntimeConfig
