"""Who listens in a network: asked of the kernel by netlink, or read from /proc where it does not answer.

Netlink matters: /proc/net/tcp walks a table that is sized for the whole machine, 4 ms on a common one, for every look.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress

NETLINK_SOCK_DIAG = 4
_DIAG_BY_FAMILY, _DONE, _ERROR = 20, 3, 2
_DUMP = 0x301
_LISTEN, _ANY = 1 << 10, 0xFFF
_TABLES = {
    "tcp": (socket.AF_INET, socket.IPPROTO_TCP, _LISTEN),
    "tcp6": (socket.AF_INET6, socket.IPPROTO_TCP, _LISTEN),
    "udp": (socket.AF_INET, socket.IPPROTO_UDP, _ANY),
    "udp6": (socket.AF_INET6, socket.IPPROTO_UDP, _ANY),
}
_HEADER = 16
_PORT_AT, _INODE_AT = _HEADER + 4, _HEADER + 68
_WAIT_S = 5.0
_LISTENING = b"0A"


def ports(diag: int, net: str, held: Collection[int] | None) -> Iterator[str]:
    """Names and numbers of ports, and of sockets with a path or name. `diag` is a netlink socket made in the network
    that `net` (a directory of /proc) tells of; `held`, where given, names the only sockets that count."""
    for name, (family, protocol, states) in _TABLES.items():
        try:
            found = _ask(diag, family, protocol, states)
        except (OSError, struct.error):
            found = _read(f"{net}/{name}", name)
        yield from (f"{name} {port}" for port, inode in found if held is None or inode in held)
    for words in _table(f"{net}/unix"):
        if len(words) > 7 and (held is None or int(words[6]) in held):
            yield f"unix {words[7].decode('utf-8', 'replace')}"


def _ask(diag: int, family: int, protocol: int, states: int) -> list[tuple[int, int]]:
    """Ports and inodes of all sockets in `states`; OSError where the kernel has no answer."""
    with socket.socket(fileno=os.dup(diag)) as link:
        link.settimeout(_WAIT_S)
        body = struct.pack("=BBBBI", family, protocol, 0, 0, states) + bytes(48)
        link.send(struct.pack("=IHHII", _HEADER + len(body), _DIAG_BY_FAMILY, _DUMP, 1, 0) + body)
        found: list[tuple[int, int]] = []
        while True:
            data = link.recv(65536)
            while data:
                length, kind = struct.unpack_from("=IH", data)
                if kind == _DONE:
                    return found
                if kind == _ERROR:
                    raise OSError(-struct.unpack_from("=i", data, _HEADER)[0], "sock_diag")
                port, inode = struct.unpack_from("!H", data, _PORT_AT)[0], struct.unpack_from("=I", data, _INODE_AT)[0]
                found.append((port, inode))
                data = data[(length + 3) & ~3 :]


def _read(path: str, name: str) -> list[tuple[int, int]]:
    return [
        (int(words[1].rpartition(b":")[2], 16), int(words[9]))
        for words in _table(path)
        if words[3] == _LISTENING or name.startswith("udp")
    ]


def _table(path: str) -> Iterator[list[bytes]]:
    with suppress(FileNotFoundError), open(path, "rb") as file:
        for line in file.read().splitlines()[1:]:
            yield line.split()
