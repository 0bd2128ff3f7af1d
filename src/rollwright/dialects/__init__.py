"""The wire formats of model calls: readers and writers with no socket inside."""

from .contract import Dialect as Dialect
from .contract import StreamReader as StreamReader
from .contract import StreamWriter as StreamWriter
from .forms import Form as Form
from .images import Hashes as Hashes
from .images import Images as Images
from .images import get_base64 as get_base64
from .imagestore import ImageHold as ImageHold
from .imagestore import ImageStore as ImageStore
from .registry import DIALECTS as DIALECTS
from .registry import dialect_named as dialect_named
from .registry import write_model as write_model
from .registry import write_models as write_models
from .spills import left_spills as left_spills
from .spills import sweep_spills as sweep_spills
from .sse import KEEPALIVE as KEEPALIVE
from .tails import Intake as Intake
from .tails import Reading as Reading
from .tails import Tails as Tails
