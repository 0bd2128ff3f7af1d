"""Boxes of Linux namespaces on this machine, made with bubblewrap. No daemon, no image, no root needed.

The settings are here; the box itself is in `runtime`, which is imported when one is made.
"""

from .config import SandboxConfig as SandboxConfig
