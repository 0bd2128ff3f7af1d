"""What boxes on other people's machines share: creating them patiently, knowing when they end, and speaking to the
script that runs inside of them. It knows no vendor."""

from .commands import Link as Link
from .commands import LinkBroken as LinkBroken
from .commands import RemoteShell as RemoteShell
from .creating import Pace as Pace
from .creating import Retry as Retry
from .creating import create_patiently as create_patiently
from .lifetime import Lifetime as Lifetime
from .looks import Watch as Watch
from .looks import beyond as beyond
from .process import RemoteProcess as RemoteProcess
from .process import Wire as Wire
from .scripts import RemoteScripts as RemoteScripts
from .scripts import bring_programs as bring_programs
from .tunnel import Tunnel as Tunnel
from .tunnel import relay_line as relay_line
