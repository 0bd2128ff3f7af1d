"""A trainer's end of a socket: asks, waits, and goes on after the other side was away. Used by one thread."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import zmq
from zmq.utils.monitor import recv_monitor_message

from rollwright.orchestrator.batches import Batch, decode_batch, sealed
from rollwright.orchestrator.contracts import PolicyVersion
from rollwright.wire import UsageError, WireError

from .keys import read_key
from .letters import (
    MAX_CHUNK_BYTES,
    Ack,
    Answer,
    Chunk,
    Fetch,
    Hello,
    Publish,
    Refused,
    Request,
    Standing,
    read_answer,
    write_letter,
)
from .pull import Pull
from .zmq import HEARTBEAT_MS, SILENCE_MS

_LONGEST_POLL_S = 0.25
_SHUT = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
_MAX_RECONNECT_MS = 1000


class SocketFeed:
    def __init__(self, address: str, key: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        if address.startswith("tcp://") and not key:
            raise UsageError(
                f"a trainer needs a key for {address}: key=... is the text in the orchestrator's trainer.key"
            )
        public, self._token = read_key(key) if key else (b"", "")
        self._address = address
        self._clock = clock
        self._numbers = itertools.count(1)
        self._pull: Pull | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = _connected(self._context, address, public)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | _SHUT)
        self._shut_out = False

    def __repr__(self) -> str:
        return self._address + (" (which ends every connection: is the key its own?)" if self._shut_out else "")

    def acked(self, within_s: float) -> int | None:
        standing = self._ask(Hello(next(self._numbers), self._token), within_s)
        return None if standing is None else standing.acked

    def ack(self, step: int, within_s: float) -> bool:
        standing = self._ask(Ack(next(self._numbers), self._token, step), within_s)
        return standing is not None and standing.acked >= step

    def publish(self, policy: PolicyVersion, within_s: float) -> bool:
        asked = Publish(next(self._numbers), self._token, policy.version, policy.path)
        return self._ask(asked, within_s) is not None

    def fetch(self, step: int, within_s: float) -> Batch | None:
        """Chunks that have come by then wait for the next call of the same step."""
        if self._pull is None or self._pull.step != step:
            self._pull = Pull(step, self._numbers)
        try:
            raw = self._pulled(self._pull, self._clock() + within_s)
            batch = None if raw is None else sealed(decode_batch(raw))
        except WireError:
            # What has come is worth nothing; who asks again gets it anew.
            self._pull = None
            raise
        if batch is not None:
            self._pull = None
        return batch

    def _pulled(self, pull: Pull, deadline: float) -> memoryview | None:
        while not pull.whole:
            asked = self._send_asks(pull)
            answers = self._read(deadline)
            if any(isinstance(answer, Standing) and answer.number in asked for answer in answers):
                # It is not there yet. When to ask again is for the caller to say.
                pull.lose()
                return None
            if not pull.whole and self._clock() >= deadline:
                raise TimeoutError(f"no batch of step {pull.step} came from {self!r} in time: {pull!r}")
        return pull.bytes()

    def close(self) -> None:
        self._context.destroy(linger=0)

    def _send_asks(self, pull: Pull) -> frozenset[int]:
        for part in pull.asks(self._clock()):
            if not self._send(Fetch(part.number, self._token, pull.step, part.offset, part.length)):
                pull.lose()
                break
        return pull.on_their_way

    def _ask(self, request: Request, within_s: float) -> Standing | None:
        """Each of these may be asked again, so a lost connection costs a question and no more."""
        deadline, sent = self._clock() + within_s, False
        while True:
            sent = sent or self._send(request)
            for answer in self._read(deadline):
                if isinstance(answer, Standing) and answer.number == request.number:
                    return answer
            if self._clock() >= deadline:
                return None

    def _send(self, request: Request) -> bool:
        """False if nobody is connected: nothing queues up for an orchestrator that is away."""
        try:
            self._socket.send(write_letter(request), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _read(self, deadline: float) -> list[Answer]:
        """All that has come, after a short wait for the first."""
        wait_s = min(max(deadline - self._clock(), 0.0), _LONGEST_POLL_S)
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        ready = dict(poller.poll(round(wait_s * 1e3)))
        answers: list[Answer] = []
        while self._socket.poll(0):
            answers.append(self._read_one())
        if self._monitor in ready:
            self._hear_of_the_line()
        self._shut_out = self._shut_out and not answers
        return answers

    def _hear_of_the_line(self) -> None:
        event = recv_monitor_message(self._monitor)["event"]
        self._shut_out = self._shut_out or bool(event & _SHUT)
        if self._pull is not None:
            self._pull.lose()

    def _read_one(self) -> Answer:
        frames = self._socket.recv_multipart(copy=False)
        answer = read_answer(frames[0].buffer)
        if isinstance(answer, Refused):
            raise self._error_of(answer)
        if isinstance(answer, Chunk):
            if len(frames) != 2:
                raise WireError(f"a chunk came in {len(frames)} frames")
            if self._pull is not None:
                self._pull.take(answer, frames[1].buffer, self._clock())
        return answer

    def _error_of(self, refused: Refused) -> Exception:
        step = self._pull.step if self._pull is not None else 0
        self._pull = None
        match refused.reason:
            case "token":
                return UsageError(f"{self._address} does not know this key; use the text in its trainer.key")
            case "gone":
                return UsageError(f"step {step} was acked and is gone; leave out first_step to go on after it")
            case _:
                return WireError(f"{self._address} could not read what it was asked")


def _connected(context: zmq.Context[zmq.Socket[bytes]], address: str, server_key: bytes) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_CHUNK_BYTES)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, _MAX_RECONNECT_MS)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS)
    if server_key:
        public, secret = zmq.curve_keypair()
        socket.curve_publickey, socket.curve_secretkey = public, secret
        socket.curve_serverkey = server_key
    socket.connect(address)
    return socket
