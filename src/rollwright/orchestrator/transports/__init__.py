"""Ways for batches to reach a trainer. A trainer needs `BatchReceiver` and nothing else of the orchestrator."""

from .files import BatchReceiver as BatchReceiver
from .files import BatchWriter as BatchWriter
