"""From a task to a scored trace: one rollout, one group, an environment that serves many, an evaluation of a set."""

from rollwright.tasks import GroupSettings as GroupSettings

from .environment import Environment as Environment
from .environment import Serving as Serving
from .evaluation import Attempts as Attempts
from .evaluation import Evaluation as Evaluation
from .groups import GroupBroken as GroupBroken
from .groups import Member as Member
from .recorder import Recorder as Recorder
from .tally import Summary as Summary
from .tally import Tally as Tally
