"""The broker's process: `python -m rollwright.serve.broker_process PARENT`, with its order in the environment. It
prints its address when it listens."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys

import msgspec

from rollwright.engines.child import belong_to

from .broker import Broker
from .launching import Launcher
from .local import LocalLauncher
from .server import ORDER, BrokerOrder


def make_launcher(kind: str) -> Launcher:
    if kind == "local":
        return LocalLauncher()
    sys.exit(f"launcher {kind!r} is not known")


def main() -> None:
    belong_to(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    order = msgspec.json.decode(os.environ.pop(ORDER), type=BrokerOrder)
    logging.basicConfig(level=logging.WARNING, format="broker: %(message)s")
    broker = Broker(order.settings, order.locks, make_launcher(order.launcher))

    def stop(*_: object) -> None:
        broker.closing = True

    signal.signal(signal.SIGTERM, stop)
    print(broker.address.encode(), flush=True)
    # Nothing here makes cycles, and a collection would hold every message that comes meanwhile.
    gc.freeze()
    gc.disable()
    try:
        broker.run()
    finally:
        broker.close()


if __name__ == "__main__":
    main()
