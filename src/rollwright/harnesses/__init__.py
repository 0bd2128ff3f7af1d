"""Programs that drive a model through a session: they speak, call tools, and know nothing of rewards or of files."""

from .chat import ChatHarness as ChatHarness
from .contract import Door as Door
from .contract import Harness as Harness
from .contract import Surroundings as Surroundings
from .conversations import Conversation as Conversation
from .guard import Guard as Guard
from .guard import Refusal as Refusal
from .programs import HarnessConfig as HarnessConfig
from .programs import ProgramHarness as ProgramHarness
from .registry import HARNESS_KINDS as HARNESS_KINDS
from .registry import harness_config as harness_config
from .registry import make_harness as make_harness
from .session import Limits as Limits
from .session import Session as Session
from .turns import Turn as Turn
from .turns import bare as bare
from .watch import TaskGuard as TaskGuard
from .watch import guard_of as guard_of
