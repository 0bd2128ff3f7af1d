"""Where a server is, and the keys to it: files that only their owner may read, from their first byte on. Everything
blocks."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec

from rollwright.serve import Address
from rollwright.serve.local import is_gone
from rollwright.serve.server import host_and_port
from rollwright.serve.wiring import Keys, address_at
from rollwright.wire import UsageError
from rollwright.wire.durable import hold_directory

ADDRESS_FILE = "server.json"


class Owner(msgspec.Struct, frozen=True):
    """The process that serves at an address; beside the address in its file."""

    pid: int = 0
    host: str = ""


class Announcement:
    """The address of a server of this process in a directory that is ours meanwhile. UsageError where another process
    has it: two servers cannot both be found there."""

    def __init__(self, directory: Path, address: Address) -> None:
        self.file = directory / ADDRESS_FILE
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._hold = hold_directory(directory)
        except OSError as error:
            raise UsageError(f"{directory} cannot be written to: {error.strerror}; name another directory") from error
        try:
            owner = Owner(os.getpid(), socket.gethostname())
            told = msgspec.to_builtins(address) | msgspec.to_builtins(owner)
            write_private(self.file, msgspec.json.encode(told).decode())
        except BaseException:
            os.close(self._hold)
            raise

    def withdraw(self) -> None:
        self.file.unlink(missing_ok=True)
        os.close(self._hold)


def write_private(file: Path, text: str) -> None:
    """In place of what was there."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(text)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}; name another directory") from error


def read_address(place: str, keys: str = "") -> Address:
    """`tcp://HOST:PORT` with the keys in a file; or the address in a file, or in the directory that `serve` wrote it
    to."""
    if place.startswith("tcp://"):
        if not keys:
            raise UsageError(f"{place} needs the keys of the server; add --keys FILE, as `rollwright keys` wrote it")
        return address_at(*host_and_port(place), read_keys(keys))
    path = Path(place)
    path = path / ADDRESS_FILE if path.is_dir() else path
    try:
        text = path.read_text()
    except OSError as error:
        raise UsageError(f"no server has left its address in {path} ({error.strerror}); is it running?") from error
    address = Address.decode(text)
    owner = msgspec.json.decode(text, type=Owner)
    if owner.pid and owner.host == socket.gethostname() and is_gone(owner.pid):
        raise UsageError(f"the server of {path} is gone: its process {owner.pid} has ended; start it again")
    return address


def read_keys(file: str) -> Keys:
    try:
        return msgspec.json.decode(Path(file).read_bytes(), type=Keys)
    except OSError as error:
        raise UsageError(f"no keys in {file} ({error.strerror}); make some with: rollwright keys DIR") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{file} holds no keys of a server: {error}") from error
