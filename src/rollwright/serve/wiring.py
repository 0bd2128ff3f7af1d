"""Sockets: addresses, who may connect, and how large things may be.

On one machine everything goes over sockets in a directory of mode 0700, and the file system says who may connect. Over
TCP everything is encrypted and the server proves itself by its key (CURVE), and each peer proves itself by a token in
its first message. Whoever knows the token and the key is trusted; both go to workers in their order, by a pipe.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import msgspec
import zmq

from rollwright.wire import UsageError

MAX_MESSAGE_BYTES = 8 * 2**30
"""Of one frame. A peer that announces more is cut off before anything is allocated."""


class Address(msgspec.Struct, frozen=True):
    """Where a broker listens, and what a peer needs to be let in."""

    front: str
    """For clients."""
    back: str
    """For workers."""
    pulse: str
    """For the workers' pulses."""
    token: str = ""
    server_key: str = ""
    """Public; empty where the sockets are files."""

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def decode(cls, text: str) -> Address:
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise UsageError(
                f"not the address of a server: {error}; use the text that `rollwright serve` printed"
            ) from error


class Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a server and its peers must agree on before they meet, where they cannot hand it to each other."""

    token: str
    server_key: str
    """Public."""
    secret_key: str = ""
    """The server's alone. Peers do without it."""


def fresh_keys() -> Keys:
    public, secret = zmq.curve_keypair()
    return Keys(secrets.token_urlsafe(24), public.decode(), secret.decode())


def address_at(host: str, port: int, keys: Keys) -> Address:
    """Three ports from `port` on, or any three where it is 0."""
    front, back, pulse = (f"tcp://{host}:{port + offset if port else '*'}" for offset in range(3))
    return Address(front, back, pulse, keys.token, keys.server_key)


class Locks(msgspec.Struct, frozen=True):
    """The broker's half of the secrets."""

    address: Address
    """What peers are told."""
    secret_key: str = ""
    bind: str = ""
    """The host to listen on, where peers are told another name for it."""


def local_locks(directory: Path) -> Locks:
    """Sockets in `directory`, which nobody else may enter."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chmod(directory, 0o700)
    front, back, pulse = (f"ipc://{directory / name}" for name in ("front", "back", "pulse"))
    for name in (front, back, pulse):
        if len(name) - len("ipc://") > zmq.IPC_PATH_MAX_LEN:
            raise UsageError(f"{directory} is too long a path for a socket; name a shorter one")
    return Locks(Address(front, back, pulse, secrets.token_urlsafe(24)))


def tcp_locks(host: str, port: int, *, advertise: str = "", keys: Keys | None = None) -> Locks:
    """Sockets at `host`, told to peers as `advertise`; encrypted, with fresh keys if none are given."""
    if host in ("*", "0.0.0.0", "[::]") and not advertise:
        raise UsageError(f"{host} is every interface and no address; name the host that others reach with --advertise")
    keys = keys or fresh_keys()
    if not keys.secret_key:
        raise UsageError("these keys are those of a peer; a server needs the file that holds its secret key too")
    return Locks(address_at(advertise or host, port, keys), keys.secret_key, host if advertise else "")


def bound(context: zmq.Context[zmq.Socket[bytes]], end: str, locks: Locks, *, pull: bool = False) -> zmq.Socket[bytes]:
    """A ROUTER (or PULL) of the broker."""
    socket = context.socket(zmq.PULL if pull else zmq.ROUTER)
    _common(socket)
    if not pull:
        # A letter to somebody who is gone raises instead of being dropped in silence.
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    if locks.secret_key:
        socket.curve_secretkey = locks.secret_key.encode()
        socket.curve_publickey = locks.address.server_key.encode()
        socket.curve_server = True
    place = f"tcp://{locks.bind}:{end.rpartition(':')[2]}" if locks.bind else end
    try:
        socket.bind(place)
    except zmq.ZMQError as error:
        socket.close()
        raise UsageError(
            f"nobody can listen at {place}: {zmq.strerror(error.errno or 0)}; name another address"
        ) from error
    if end.startswith("ipc://"):
        os.chmod(end.removeprefix("ipc://"), 0o600)
    return socket


def told_end(socket: zmq.Socket[bytes], locks: Locks, end: str) -> str:
    """Where peers find a bound socket, with the port that it got."""
    last = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(last, bytes)
    bound_end = last.rstrip(b"\0").decode()
    return f"{end.rpartition(':')[0]}:{bound_end.rpartition(':')[2]}" if locks.bind else bound_end


def connected(
    context: zmq.Context[zmq.Socket[bytes]], end: str, address: Address, *, push: bool = False
) -> zmq.Socket[bytes]:
    """A DEALER (or PUSH) of a client or worker."""
    socket = context.socket(zmq.PUSH if push else zmq.DEALER)
    _common(socket)
    if address.server_key:
        public, secret = zmq.curve_keypair()
        socket.curve_publickey, socket.curve_secretkey = public, secret
        socket.curve_serverkey = address.server_key.encode()
    socket.connect(end)
    return socket


def _common(socket: zmq.Socket[bytes]) -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    # The bounds are ours, in rollouts and with answers; a queue that drops or blocks below them would break the books.
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
