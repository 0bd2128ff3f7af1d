"""Interpreters for PEP 723 scripts: what a script needs, and the environment that has it. Runs no script."""

from .interpreters import cache_dir as cache_dir
from .interpreters import provision as provision
from .pep723 import Needs as Needs
from .pep723 import needs_of as needs_of
