"""Who listens in a network: asked of the kernel by netlink, or read from /proc where it does not answer.

Netlink matters: /proc/net/tcp walks a table that is sized for the whole machine, 4 ms on a common one, for every look.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

NETLINK_SOCK_DIAG = 4
_DIAG_BY_FAMILY, _DESTROY, _DONE, _ERROR = 20, 21, 3, 2
_DUMP, _ACKNOWLEDGED = 0x301, 0x5
_TIME_WAIT, _LISTEN, _ANY = 1 << 6, 1 << 10, 0xFFF
_TABLES = {
    "tcp": (socket.AF_INET, socket.IPPROTO_TCP, _LISTEN),
    "tcp6": (socket.AF_INET6, socket.IPPROTO_TCP, _LISTEN),
    "udp": (socket.AF_INET, socket.IPPROTO_UDP, _ANY),
    "udp6": (socket.AF_INET6, socket.IPPROTO_UDP, _ANY),
}
_HEADER = 16
_PORT_AT, _INODE_AT = _HEADER + 4, _HEADER + 68
_WHICH = slice(_HEADER + 4, _HEADER + 52)
"""What names a socket in an answer, and in an order to destroy it."""
_MOST = 65536
_WAIT = struct.pack("ll", 5, 0)
"""Seconds and microseconds: how long the kernel may take to answer."""
_LISTENING = b"0A"


def ports(diag: int, net: str, held: Collection[int] | None) -> Iterator[str]:
    """Names and numbers of ports, and of sockets with a path or name. `diag` is a netlink socket made in the network
    that `net` (a directory of /proc) tells of; `held`, where given, names the only sockets that count."""
    for name, found in _asked(diag, net).items():
        yield from (f"{name} {port}" for port, inode in found if held is None or inode in held)
    for words in _table(f"{net}/unix"):
        if len(words) > 7 and (held is None or int(words[6]) in held):
            yield f"unix {words[7].decode('utf-8', 'replace')}"


def are_waiting(counts: int) -> bool:
    """Whether TCP connections ended within the last minute in the network whose sockets are counted in this file (-1
    where that is not known). They hold their port."""
    return counts >= 0 and b" tw " in (told := os.pread(counts, _MOST, 0)) and b" tw 0 " not in told


def end_waiting(diag: int) -> bool:
    """Let such connections go; False where the kernel cannot, which keeps them for their minute."""
    with suppress(OSError, struct.error), _talk(diag) as link:
        for family in (socket.AF_INET, socket.AF_INET6):
            link.send(_question((family, socket.IPPROTO_TCP, _TIME_WAIT)))
            for found in _messages(link):
                body = struct.pack("=BBBBI", found[_HEADER], socket.IPPROTO_TCP, 0, 0, _TIME_WAIT) + found[_WHICH]
                link.send(struct.pack("=IHHII", _HEADER + len(body), _DESTROY, _ACKNOWLEDGED, 1, 0) + body)
                if struct.unpack_from("=i", link.recv(_MOST), _HEADER)[0] == -errno.EOPNOTSUPP:
                    return False
        return True
    return False


def _asked(diag: int, net: str) -> dict[str, list[tuple[int, int]]]:
    """By table, ports and inodes. All tables are asked for at once; the kernel refuses the later of two long answers,
    and then each is asked for by itself."""
    try:
        with _talk(diag) as link:
            link.send(_ALL_QUESTIONS)
            answers = [_answer(link) for _ in _TABLES]
    except (OSError, struct.error):
        return {name: _alone(diag, net, name) for name in _TABLES}
    return dict(zip(_TABLES, answers, strict=True))


def _alone(diag: int, net: str, name: str) -> list[tuple[int, int]]:
    """One table, from /proc where netlink has no answer."""
    try:
        with _talk(diag) as link:
            while _is_waiting(link):  # What is left of an answer that was given up.
                link.recv(_MOST)
            link.send(_question(_TABLES[name]))
            return _answer(link)
    except (OSError, struct.error):
        return _read(f"{net}/{name}", name)


@contextmanager
def _talk(diag: int) -> Iterator[socket.socket]:
    link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG, fileno=os.dup(diag))
    try:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _WAIT)
        yield link
    finally:
        link.close()


def _is_waiting(link: socket.socket) -> bool:
    return bool(select.select([link], [], [], 0)[0])


def _question(table: tuple[int, int, int]) -> bytes:
    family, protocol, states = table
    body = struct.pack("=BBBBI", family, protocol, 0, 0, states) + bytes(48)
    return struct.pack("=IHHII", _HEADER + len(body), _DIAG_BY_FAMILY, _DUMP, 1, 0) + body


_ALL_QUESTIONS = b"".join(map(_question, _TABLES.values()))


def _answer(link: socket.socket) -> list[tuple[int, int]]:
    """Ports and inodes of all sockets that were asked for; OSError where the kernel has no answer."""
    return [
        (struct.unpack_from("!H", found, _PORT_AT)[0], struct.unpack_from("=I", found, _INODE_AT)[0])
        for found in _messages(link)
    ]


def _messages(link: socket.socket) -> list[bytes]:
    """One for each socket that was asked for."""
    found: list[bytes] = []
    while True:
        data = link.recv(_MOST)
        while data:
            length, kind = struct.unpack_from("=IH", data)
            if kind == _DONE:
                return found
            if kind == _ERROR:
                raise OSError(-struct.unpack_from("=i", data, _HEADER)[0], "sock_diag")
            found.append(data[:length])
            data = data[(length + 3) & ~3 :]


def _read(path: str, name: str) -> list[tuple[int, int]]:
    return [
        (int(words[1].rpartition(b":")[2], 16), int(words[9]))
        for words in _table(path)
        if words[3] == _LISTENING or name.startswith("udp")
    ]


def _table(path: str) -> Iterator[list[bytes]]:
    # Without a buffer: whatever is there comes in one or two reads.
    with suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
        for line in file.readall().splitlines()[1:]:
            yield line.split()
