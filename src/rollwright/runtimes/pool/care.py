"""One box in the pool's hands: started and looked at, reset and looked at again, asked, stopped.

This is the border to the code of the kinds. What they raise ends here as a value; what that means is not decided here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from rollwright.runtimes.contract import Runtime, RuntimeConfig
from rollwright.runtimes.state import BoxState, differences, told
from rollwright.wire import RollwrightError, RuntimeFault

log = logging.getLogger("rollwright.runtimes")

Maker = Callable[[RuntimeConfig], Runtime]

_PROBE_S = 10.0
_STOP_S = 60.0


@dataclass(slots=True)
class Held:
    """A box, and how it looked right after its start."""

    config: RuntimeConfig
    make: Maker
    runtime: Runtime | None = None
    fresh: BoxState | None = None
    reset_s: float = 0.0
    """How long the last reset took, with the look that proved it."""

    @property
    def box(self) -> Runtime:
        assert self.runtime is not None
        return self.runtime

    @property
    def name(self) -> str:
        return self.runtime.name if self.runtime is not None else "a box"

    async def start(self, within_s: float) -> Exception | None:
        """What went wrong, or None."""
        try:
            self.runtime = self.make(self.config)
            async with asyncio.timeout(within_s) as clock:
                await self.runtime.start()
                self.fresh = await self.runtime.inspect()
        except Exception as error:
            if isinstance(error, TimeoutError) and clock.expired():
                return RuntimeFault(f"a box did not start within {within_s:g} s")
            return error
        return None

    async def reset(self, within_s: float) -> str:
        """Why it cannot be used again, or nothing."""
        assert self.fresh is not None
        began = time.perf_counter()
        try:
            async with asyncio.timeout(within_s) as clock:
                await self.box.reset()
                found = differences(self.fresh, await self.box.inspect())
        except Exception as error:
            if isinstance(error, TimeoutError) and clock.expired():
                return f"its reset took longer than {within_s:g} s"
            return f"its reset failed: {str(error) or type(error).__name__}"
        self.reset_s = time.perf_counter() - began
        return f"after its reset, {told(found)}" if found else ""

    async def answers(self) -> bool:
        """A box that cannot be asked is a dead one."""
        try:
            async with asyncio.timeout(_PROBE_S):
                return await self.box.alive()
        except Exception as error:
            log.debug("%s could not be asked whether it is alive: %s", self.name, error)
            return False

    async def stop(self) -> str:
        """Why it may still be there, or nothing."""
        if self.runtime is None:
            return ""
        try:
            async with asyncio.timeout(_STOP_S):
                await self.runtime.stop()
        except Exception as error:
            return str(error) or type(error).__name__
        return ""


def translated(error: Exception) -> RollwrightError:
    """The error for one of those who waited: the one that was caught may be told to many."""
    if isinstance(error, RollwrightError):
        return type(error)(*error.args)
    return RuntimeFault(f"a box did not start: {str(error) or type(error).__name__}")
