"""Ways for batches to reach a trainer. A trainer needs `BatchReceiver` and nothing else of the orchestrator."""

from .contract import Window as Window
from .directory import FileSender as FileSender
from .receiver import BatchReceiver as BatchReceiver
