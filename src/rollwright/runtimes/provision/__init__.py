"""What is fetched once per host: interpreters for PEP 723 scripts, and programs from npm. Runs none of them."""

from .building import cache_dir as cache_dir
from .interpreters import find_interpreter as find_interpreter
from .interpreters import provision as provision
from .npm import NpmProgram as NpmProgram
from .npm import find_npm as find_npm
from .npm import host_platform as host_platform
from .npm import npm_platform as npm_platform
from .npm import provision_npm as provision_npm
from .pep723 import Needs as Needs
from .pep723 import needs_of as needs_of
