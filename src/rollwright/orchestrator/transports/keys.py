"""Who may connect: the orchestrator's key pair, and a token that a trainer shows.

Over TCP everything is encrypted and the orchestrator proves itself by its key (CURVE); the trainer proves itself by the
token, which is in each of its letters. Both are made once per directory, so that a trainer finds the orchestrator again
after either was restarted. Over a socket that is a file, the file system says who may connect.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from pathlib import Path

import msgspec
import zmq
from zmq.utils import z85

from rollwright.wire import UsageError, WireError

SECRET_NAME = "orchestrator.key"
TRAINER_NAME = "trainer.key"
_KEY_BYTES = 32
_TOKEN_BYTES = 24
_PREFIX = "rwt_"


class Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    public: str
    secret: str
    token: str

    @property
    def for_trainer(self) -> str:
        """All that a trainer needs, in one word that a shell takes without quotes."""
        return _PREFIX + base64.urlsafe_b64encode(z85.decode(self.public) + self.token.encode()).decode()


def keys_in(directory: Path) -> Keys:
    """The keys of this directory, made now if it has none. The trainer's lie beside them, for their owner to read."""
    path = directory / SECRET_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Keys)
    except FileNotFoundError:
        pass
    except msgspec.DecodeError as error:
        raise WireError(f"{path} does not hold keys: {error}; remove it to have new ones made") from error
    public, secret = zmq.curve_keypair()
    keys = Keys(public.decode(), secret.decode(), secrets.token_urlsafe(_TOKEN_BYTES))
    directory.mkdir(parents=True, exist_ok=True)
    _write_private(directory / TRAINER_NAME, keys.for_trainer.encode() + b"\n")
    _write_private(path, msgspec.json.encode(keys))
    return keys


def read_key(text: str) -> tuple[bytes, str]:
    """The orchestrator's public key and the token, out of what a trainer was given."""
    try:
        raw = base64.b64decode(text.strip().removeprefix(_PREFIX), altchars=b"-_", validate=True)
        public, token = z85.encode(raw[:_KEY_BYTES]), raw[_KEY_BYTES:].decode("ascii")
    except (binascii.Error, ValueError):
        public, token = b"", ""
    if not token:
        raise UsageError(f"not a trainer's key; use the text in {TRAINER_NAME} of the orchestrator's output directory")
    return public, token


def _write_private(path: Path, content: bytes) -> None:
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    # Nobody else may read it, not even between its making and its filling.
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
    os.replace(unfinished, path)
