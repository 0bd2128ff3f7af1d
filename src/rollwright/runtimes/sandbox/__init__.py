"""Boxes of Linux namespaces on this machine, made with bubblewrap. No daemon, no image, no root needed."""

from .config import SandboxConfig as SandboxConfig
from .runtime import SandboxRuntime as SandboxRuntime
