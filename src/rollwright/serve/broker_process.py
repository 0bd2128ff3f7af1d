"""The broker's process: `python -m rollwright.serve.broker_process PARENT`, with its order in the environment. On
stdout it tells its parent where it listens, and later what a broker born in its place has to know."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys

import msgspec

from rollwright.engines.child import belong_to
from rollwright.wire import UsageError

from .broker import Broker
from .launching import Launcher
from .local import LocalLauncher
from .settings import ORDER, BrokerOrder, Listens, Note, Scaled, Unusable
from .voice import Voice


def make_launcher(kind: str, options: str, voice: Voice) -> Launcher:
    if kind == "local":
        return LocalLauncher(voice=voice)
    if kind == "ray":
        from .ray.launcher import RayLauncher
        from .ray.settings import RaySettings

        return RayLauncher(msgspec.json.decode(options, type=RaySettings))
    raise UsageError(f"launcher {kind!r} is not known; it is local or ray")


def tell(note: Note) -> None:
    print(note.line(), flush=True)


def open_broker(order: BrokerOrder, voice: Voice) -> Broker:
    launcher = make_launcher(order.launcher, order.launcher_options, voice)
    try:
        return Broker(order.settings, order.locks, launcher, scaled=lambda workers: tell(Scaled(workers)))
    except UsageError:
        launcher.close()
        raise


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGE_BYTES = 32 * 2**20
"""The most that glibc takes from its heap."""
_KEPT_BYTES = 128 * 2**20
"""What may lie free in it."""


def keep_large_blocks() -> None:
    """Let glibc use the memory of large frames again. By itself it asks the system for each and gives it back, and
    the system clears every page of it: a third of the cost of passing on frames of 24 MB. Elsewhere nothing changes."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        # The thread that reads the sockets would have a heap of its own, too small for two such frames.
        mallopt(_M_ARENA_MAX, 1)


def main() -> None:
    belong_to(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    order = msgspec.json.decode(os.environ.pop(ORDER), type=BrokerOrder)
    voice = Voice()
    logging.basicConfig(level=logging.WARNING, format="broker: %(message)s", stream=voice)
    keep_large_blocks()
    try:
        broker = open_broker(order, voice)
    except UsageError as error:
        tell(Unusable(str(error)))
        sys.exit(1)

    def stop(*_: object) -> None:
        broker.closing = True

    signal.signal(signal.SIGTERM, stop)
    tell(Listens(broker.address))
    # Nothing here makes cycles, and a collection would hold every message that comes meanwhile.
    gc.freeze()
    gc.disable()
    try:
        broker.run()
    finally:
        broker.close()


if __name__ == "__main__":
    main()
