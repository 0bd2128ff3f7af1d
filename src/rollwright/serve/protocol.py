"""What client, broker and worker say to one another.

A message is an envelope and, behind it, frames that belong to the two ends. The broker reads envelopes and passes the
frames on unread, so what it costs does not depend on what is inside. Envelopes are msgpack arrays of a few numbers and
words; anything else is a WireError, and the peer that sent it is told so and loses nothing but that message.

    client -> broker   Hello, Submit [job], Cancel, Withdraw, Ask, Tick, Bye
    broker -> client   Welcome, Part [trace], Done [ending], Voided, Failed, Told [answer], Refused, Tick
    broker -> worker   Probe, Run [job], Drop, Withdraw, Leave, Policy, Refused, Tick
    worker -> broker   Arrived, Probed, Leaving, Part [trace], Done [ending], Failed
    worker -> pulse    Beat [vitals]
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from rollwright.wire import Failure, RollwrightError, Score, ServingError, Stop, Trace, WireError
from rollwright.wire.codec import Buffer

VERSION = 3
MAX_ENVELOPE_BYTES = 64 * 1024
E = TypeVar("E")


class Envelope(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True, tag=True):
    """What the broker reads."""


class Laid(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Where the large frames of a message lie, if not behind it: on the shelf of a worker (`shelf.py`)."""

    pid: int
    fd: int
    name: int
    entry: int
    number: int
    begin: int
    frames: tuple[tuple[int, int], ...]
    """Which of the message's frames they are, and their sizes."""

    @property
    def size(self) -> int:
        return sum(size for _, size in self.frames)


class Hello(Envelope, frozen=True):
    version: int
    token: str
    place: str = ""
    """Workers of the same place may lay large frames on their shelf for it; none where it is empty."""
    budget_bytes: int = 0
    """How much it takes before its caller has taken what came; 0 leaves that to the broker."""


class Welcome(Envelope, frozen=True):
    broker: str
    """Names this life of the broker: another name means that it was born again and knows nothing of what was sent."""
    window: int
    """How many rollouts this client may have in the broker at once."""
    ready: bool
    """Whether some worker has answered a probe. Sent again whenever that changes."""
    failing: str = ""
    """Why nothing will ever run here; empty while there is hope."""


class Submit(Envelope, frozen=True):
    """Please run this. `rollouts` is its weight; its positions are 0 to rollouts - 1."""

    request: int
    rollouts: int
    label: str
    """What people call it, for messages about it."""
    timeout_s: float
    broker: str
    """The life of the broker that it was sent to. What the network still carries after a rebirth is not run."""
    together: bool = False
    """Its rollouts are scored together, so a new attempt runs all of them; else only those that did not arrive."""
    retry: bool = True
    """Whether it may run again after its worker died."""


class Cancel(Envelope, frozen=True):
    request: int


class Withdraw(Envelope, frozen=True):
    """One rollout of a request is not wanted any more; the others go on."""

    request: int
    """To a worker: its ticket."""
    position: int


class Ask(Envelope, frozen=True):
    """A question about the server, or an order to it."""

    question: int
    verb: str
    value: str = ""


class Told(Envelope, frozen=True):
    question: int
    error: str = ""


class Tick(Envelope, frozen=True):
    """Said twice a second, so that silence means something."""

    read_bytes: int = 0
    """What a client has read of results, of all that the broker has sent it since it came."""
    taken_bytes: int = 0
    """What of it the client's caller has taken."""


class Bye(Envelope, frozen=True):
    """The client leaves; what it asked for is dropped."""


class Refusal(StrEnum):
    """What a peer does next depends on it; the words are for people."""

    STRANGER = "stranger"
    """Whoever speaks has to say hello first: the broker was born again, or has given this client up."""
    UNREADABLE = "unreadable"
    """The message makes no sense; nothing came of it."""
    TURNED_AWAY = "turned_away"
    """The token or version is not this server's, or nobody asked for this worker. Trying again changes nothing."""


class Refused(Envelope, frozen=True):
    """Nothing came of the last message."""

    kind: Refusal
    reason: str


class Part(Envelope, frozen=True):
    """One rollout of a request is over; its trace follows."""

    request: int
    position: int
    last: bool = False
    """The request is over with it, and scoring together changed nothing: no `Done` comes."""
    laid: Laid | None = None


class Done(Envelope, frozen=True):
    """The request is over; what scoring its rollouts together changed follows."""

    request: int
    laid: Laid | None = None


class Voided(Envelope, frozen=True):
    """The worker died, and the request runs again from the start: forget the parts that came."""

    request: int


class Trouble(StrEnum):
    """Why a request has no result."""

    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    POISON = "poison"
    WORKER_LOST = "worker_lost"
    NO_WORKERS = "no_workers"
    OVERLOADED = "overloaded"
    REFUSED = "refused"
    BROKE = "broke"


class Failed(Envelope, frozen=True):
    request: int
    trouble: Trouble
    message: str


class Policy(Envelope, frozen=True):
    """The engines serve this version from now on."""

    version: int


class Probe(Envelope, frozen=True):
    nonce: int


class Probed(Envelope, frozen=True):
    nonce: int


class Arrived(Envelope, frozen=True):
    """A worker is open for work."""

    version: int
    token: str
    slot: int
    life: int
    capacity: int
    place: str = ""
    """As in `Hello`."""


class Run(Envelope, frozen=True):
    """`ticket` is new for every attempt, so that a late answer to an old one is known as such."""

    ticket: int
    timeout_s: float
    skip: tuple[int, ...] = ()
    """Positions that have arrived in an earlier attempt."""
    near: bool = False
    """Whether its client can look into the worker's shelf."""


class Drop(Envelope, frozen=True):
    ticket: int


class Leave(Envelope, frozen=True):
    """Finish what you have and go."""


class Leaving(Envelope, frozen=True):
    """A worker that was told from elsewhere to go: it finishes what it has, and wants no more."""


class Beat(Envelope, frozen=True):
    """Said by a thread of the worker that does nothing else."""

    token: str
    slot: int
    life: int
    loop_age_s: float
    """How long ago the worker's loop last turned."""
    stack: str = ""
    """Where the loop stands, once it is late."""
    begun: int = 0
    """The highest ticket that the loop has begun; tickets come in order. Those above it are still on their way."""


FromClient = Hello | Submit | Cancel | Withdraw | Ask | Tick | Bye
ToClient = Welcome | Part | Done | Voided | Failed | Told | Refused | Tick
ToWorker = Probe | Run | Drop | Withdraw | Leave | Policy | Refused | Tick
FromWorker = Arrived | Probed | Leaving | Part | Done | Failed

_ENCODER = msgspec.msgpack.Encoder()
_DECODERS: dict[Any, Any] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (FromClient, ToClient, ToWorker, FromWorker, Beat)
}


def pack(envelope: Envelope) -> bytes:
    return _ENCODER.encode(envelope)


def unpack(frame: Buffer, kind: Any) -> Any:
    """The envelope in `frame`, one of the kinds that this end hears."""
    if len(frame) > MAX_ENVELOPE_BYTES:
        raise WireError(f"an envelope of {len(frame)} bytes is over the limit of {MAX_ENVELOPE_BYTES}")
    try:
        return _DECODERS[kind].decode(frame)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError(f"not an envelope of ours: {error}") from error


class Job(msgspec.Struct, frozen=True, gc=False):
    """What a worker is asked to run: attempts at one task. Position i is attempt `attempts[i]`."""

    task_id: str
    attempts: tuple[int, ...]
    earlier: tuple[Trace, ...] = ()
    """Finished rollouts of the same group, for scoring them together."""


class Amendment(msgspec.Struct, frozen=True, gc=False):
    """What scoring together changed in one trace, which itself is not sent twice unless it grew."""

    position: int
    scores: dict[str, Score]
    reward: float
    stop: Stop
    failure: Failure | None = None
    trace: Trace | None = None
    """The whole of it, where scoring together went on with its conversation."""


class Ending(msgspec.Struct, frozen=True, gc=False):
    amendments: tuple[Amendment, ...] = ()


class Unserved(ServingError):
    """One request came back without a result. `trouble` says why."""

    def __init__(self, message: str, trouble: Trouble = Trouble.BROKE) -> None:
        super().__init__(message)
        self.trouble = trouble


class ServerLost(RollwrightError):
    """There is nobody left who could serve anything: no worker, no broker, or no way in. The run is over."""


def failure_of(said: Failed) -> Unserved | ServerLost:
    if said.trouble is Trouble.NO_WORKERS:
        return ServerLost(said.message)
    return Unserved(said.message, said.trouble)


def amend(traces: Sequence[Trace], ending: Ending) -> list[Trace]:
    """The traces as they are after the group stage."""
    amended = list(traces)
    for change in ending.amendments:
        if not 0 <= change.position < len(amended):
            raise WireError(f"an amendment names rollout {change.position} of {len(amended)}")
        amended[change.position] = msgspec.structs.replace(
            change.trace or amended[change.position],
            scores=change.scores,
            reward=change.reward,
            stop=change.stop,
            failure=change.failure,
        )
    return amended


def amendments(positions: Sequence[int], before: Sequence[Trace], after: Sequence[Trace]) -> Ending:
    """What to send so that `amend` turns the traces at `positions` from `before` into `after`. Only what the group
    stage may change is looked at."""
    return Ending(
        tuple(
            Amendment(
                position, new.scores, new.reward, new.stop, new.failure, new if new.nodes is not old.nodes else None
            )
            for position, old, new in zip(positions, before, after, strict=True)
            if old is not new
        )
    )
