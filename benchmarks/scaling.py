"""Where is the first bottleneck of 10,000 and of 100,000 rollouts at once, over hundreds of workers behind one broker?

Nobody here has hundreds of machines, so this is a simulation: a clock that jumps, costs that the other benchmarks
measured (`virtual/costs.py` says which), and the broker's own books and slots, which decide as they do in a broker.
Each size runs with plain traces and with traces that carry routed experts. Loads are shares of one core; the largest
names the first bottleneck. Same seed, same figures.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from .report import Target, report
from .virtual.cluster import Cluster
from .virtual.costs import Costs, Load

ROUTED_BYTES = 48 * 8
SHOWN = ("workers", "rollouts_per_s", "of_ideal", "gb_per_s")


def scenario(size: int, options: argparse.Namespace, *, routed: bool) -> tuple[str, Load]:
    plain = Load(
        concurrency=size,
        window_s=options.window_s,
        capacity=options.capacity,
        clients=options.clients,
        turns=options.turns,
        turn_s=options.turn_s,
        tokens=options.tokens,
        io_threads=options.io_threads,
    )
    name = f"{size // 1000}k" if size % 1000 == 0 else str(size)
    if not routed:
        return name, plain
    return f"{name}_routed", replace(plain, bytes_per_token=plain.bytes_per_token + ROUTED_BYTES)


def simulate(load: Load, seed: int, costs: Costs = Costs()) -> tuple[dict[str, float], str]:  # noqa: B008 - frozen
    """The figures, and which part is the first that would not do more."""
    cluster = Cluster(load, costs, seed)
    cluster.run()
    return cluster.figures(), max(cluster.loads, key=lambda part: cluster.loads[part])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000], help="Rollouts at once.")
    parser.add_argument("--window-s", type=float, default=20.0, help="How long the cluster is watched.")
    parser.add_argument("--capacity", type=int, default=64, help="Rollouts at once in each worker.")
    parser.add_argument("--clients", type=int, default=1, help="Processes that ask.")
    parser.add_argument("--turns", type=int, default=45, help="Model calls of a rollout.")
    parser.add_argument("--turn-s", type=float, default=2.5, help="Mean time of a model call.")
    parser.add_argument("--tokens", type=int, default=60_000, help="Length of a trace.")
    parser.add_argument("--io-threads", type=int, default=4, help="Threads of the broker's sockets.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    targets: dict[str, Target] = {}
    for size in options.sizes:
        for routed in (False, True):
            name, load = scenario(size, options, routed=routed)
            found, first = simulate(load, options.seed)
            told = "   ".join(f"{key} {found[key]:,.3g}" for key in SHOWN)
            print(f"{name}: {told}   first bottleneck: {first} at {found[first]:.2f}", file=sys.stderr, flush=True)
            figures |= {f"{name}_{key}": value for key, value in found.items()}
            targets |= {f"{name}_{key}": ("==", 0.0) for key in ("lost", "duplicated")}
    report("scaling", figures, targets, as_json=options.json)


if __name__ == "__main__":
    main()
