"""The wire formats of model calls: readers and writers with no socket inside."""

from .contract import Dialect as Dialect
from .contract import StreamReader as StreamReader
from .contract import StreamWriter as StreamWriter
from .images import Images as Images
from .images import MemoryImages as MemoryImages
from .registry import DIALECTS as DIALECTS
from .registry import dialect_named as dialect_named
from .registry import write_models as write_models
from .sse import KEEPALIVE as KEEPALIVE
