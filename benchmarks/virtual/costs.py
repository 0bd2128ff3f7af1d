"""What things cost, each with where the number comes from, and what is asked of the cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """CPU of one core of a 2-core machine at about 2.5 GHz."""

    broker_us: float = 52.0
    """The broker's loop per rollout: in, out, back and forth. `benchmarks.serving`, split by process."""
    client_us: float = 62.0
    """The client's loop per rollout. The same."""
    worker_us: float = 41.0
    """The worker's loop per rollout, without the rollout. The same."""
    turn_us: float = 1400.0
    """The worker's loop per turn: the call over HTTP, the record of it. `benchmarks.rollouts`."""
    beat_us: float = 15.0
    """The broker's loop per beat of a worker: 7 us to read it into the slots, and 8 us, an estimate, to receive it."""
    tick_us: float = 1.1
    """The broker's loop per worker and tick: four looks at its life. Timed on `Slots` with 1,563 lives."""
    broker_ms_per_mb: float = 1.35
    """A thread of the broker's sockets, to decrypt or to encrypt (CURVE): half of what the broker used for the large
    traces of `benchmarks.serving`, over TCP."""
    peer_ms_per_mb: float = 1.45
    """A thread of a worker's or client's sockets for the same."""
    hop_s: float = 0.0002
    """From one machine to the next. An estimate."""
    start_s: float = 3.0
    """From the start of a worker to its answer to the probe. An estimate."""
    beats_per_s: float = 5.0
    ticks_per_s: float = 20.0


@dataclass(frozen=True)
class Load:
    """What is asked for: `concurrency` rollouts at once, each followed by another, until the clients leave."""

    concurrency: int
    window_s: float = 20.0
    capacity: int = 64
    """Rollouts at once in each worker."""
    clients: int = 1
    turns: int = 45
    turn_s: float = 2.5
    """Mean time that the engine takes for a turn."""
    spread: float = 0.5
    """Sigma of the logarithm of a rollout's length."""
    tokens: int = 60_000
    bytes_per_token: float = 13.0
    """Ids, logprobs, mask, and the text itself; 384 more with routed experts of 48 layers and 8 experts each."""
    io_threads: int = 4
    """Threads of the broker's sockets."""
    deaths_per_worker_hour: float = 2.0
    """A bad day."""

    @property
    def workers(self) -> int:
        return -(-self.concurrency // self.capacity)

    @property
    def mb(self) -> float:
        """Of one trace."""
        return self.tokens * self.bytes_per_token / 1e6
