"""How programs are started, fed, read and ended on this machine. Shared by the kinds that run here; knows no kind."""

from .boxdir import BoxDir as BoxDir
from .census import Quarry as Quarry
from .census import find as find
from .census import sweep as sweep
from .child import Launch as Launch
from .child import spawn_turn as spawn_turn
from .command import Command as Command
from .command import run_to_end as run_to_end
from .confine import Confinement as Confinement
from .environment import host_environment as host_environment
from .limits import Limits as Limits
from .process import LocalProcess as LocalProcess
from .shield import shielded as shielded
