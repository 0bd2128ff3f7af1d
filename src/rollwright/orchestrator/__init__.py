"""Groups in, batches out: dispatch, advantages, samples, batch files. Trainers import `orchestrator.transports`."""

from .advantages import group_centred as group_centred
from .batches import Batch as Batch
from .drafts import samples_of as samples_of
from .samples import DropReason as DropReason
from .samples import Sample as Sample
from .samples import why_dropped as why_dropped
from .settings import OrchestrateSettings as OrchestrateSettings
