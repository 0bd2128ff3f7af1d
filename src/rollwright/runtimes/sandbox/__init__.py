"""Boxes of Linux namespaces on this machine, made by a warden process, and by bubblewrap where the kernel refuses it to
us. No daemon, no image, no root needed.

The settings are here; the box itself is in `runtime`, which is imported when one is made.
"""

from .config import SandboxConfig as SandboxConfig
