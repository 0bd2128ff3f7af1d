"""`rollwright keys DIR`: keys for a server and its peers, for when they are handed out before the server starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from rollwright.serve.wiring import fresh_keys
from rollwright.wire import UsageError

from . import flags
from .addresses import write_private
from .fields import settings_of
from .talk import Talk

SERVER_FILE, PEER_FILE = "server-keys.json", "peer-keys.json"


class KeysSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Make keys for a server (server-keys.json) and for its workers and clients (peer-keys.json) in a directory."""

    debug: bool = False
    """Show the traceback of an error."""


def main(argv: Sequence[str], talk: Talk) -> int:
    line = flags.cut("keys", argv, settings_of(KeysSettings), {})
    if line.help:
        flags.print_help(KeysSettings(), "rollwright keys DIR", {}, KeysSettings.__doc__ or "")
        return 0
    if len(line.words) != 1:
        raise UsageError("keys takes the directory to write them to: rollwright keys DIR")
    place = Path(line.words[0])
    found = [name for name in (SERVER_FILE, PEER_FILE) if (place / name).exists()]
    if found:
        raise UsageError(f"{place / found[0]} is there already; a server may use it. Name another directory")
    keys = fresh_keys()
    write_private(place / SERVER_FILE, msgspec.json.encode(keys).decode())
    # What peers do not need they do not get: whoever has the secret key could pose as the server.
    write_private(place / PEER_FILE, msgspec.json.encode(msgspec.structs.replace(keys, secret_key="")).decode())
    talk.say(f"{place / SERVER_FILE} is for `serve --keys`, {place / PEER_FILE} for `join --keys` and `ctl --keys`.")
    return 0
