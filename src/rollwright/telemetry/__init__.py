"""What a process knows about itself: loop lag and its culprits, memory, metrics. It knows nothing of rollouts."""

from .health import publish_health as publish_health
from .histogram import HistogramSummary as HistogramSummary
from .histogram import LogHistogram as LogHistogram
from .lag import LagSnapshot as LagSnapshot
from .lag import LoopLagMonitor as LoopLagMonitor
from .loop import new_event_loop as new_event_loop
from .loop import run as run
from .loop import started as started
from .memory import MemoryTrimmer as MemoryTrimmer
from .memory import TrimStats as TrimStats
from .memory import peak_rss_bytes as peak_rss_bytes
from .memory import rss_bytes as rss_bytes
from .metrics import Counter as Counter
from .metrics import Gauge as Gauge
from .metrics import Histogram as Histogram
from .metrics import Metrics as Metrics
from .metrics import MetricsSnapshot as MetricsSnapshot
from .pump import MetricsPump as MetricsPump
from .pump import Sink as Sink
from .pump import SinkStats as SinkStats
from .watchdog import Stall as Stall
from .watchdog import StallKind as StallKind
