"""Messages to token ids and back, for one model family at a time. A renderer knows no sockets and no engine."""

from .choose import renderer_for as renderer_for
from .contract import PARITY as PARITY
from .contract import Attempt as Attempt
from .contract import Declined as Declined
from .contract import LiteralPolicy as LiteralPolicy
from .contract import Literals as Literals
from .contract import Parser as Parser
from .contract import Reason as Reason
from .contract import Renderer as Renderer
from .contract import RenderOptions as RenderOptions
from .contract import Status as Status
from .contract import ThinkingPolicy as ThinkingPolicy
from .engine import TokenEngine as TokenEngine
from .engine import load_engine as load_engine
from .pool import PoolStats as PoolStats
from .pool import RendererPool as RendererPool
from .tape import Placeholder as Placeholder
from .tape import Run as Run
from .tape import Tape as Tape
