"""Groups in, batches out: dispatch, advantages, samples, batch files. Trainers import `orchestrator.transports`."""

from .batches import Batch as Batch
from .contracts import EvalSource as EvalSource
from .contracts import GroupRunner as GroupRunner
from .contracts import Source as Source
from .drafts import samples_of as samples_of
from .evals import EvalPlan as EvalPlan
from .evals import EvalReport as EvalReport
from .loop import Orchestrator as Orchestrator
from .loop import PolicyLost as PolicyLost
from .plans import GroupsFailed as GroupsFailed
from .reports import Report as Report
from .reports import StepReport as StepReport
from .samples import DropReason as DropReason
from .samples import Sample as Sample
from .samples import why_dropped as why_dropped
from .settings import OrchestrateSettings as OrchestrateSettings
from .sources import SourcePlan as SourcePlan
