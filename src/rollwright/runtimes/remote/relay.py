"""Runs inside of a remote box, with its python3 and nothing of ours: carries connections over stdin and stdout.

It listens on a loopback port of the box and tells it; each connection is a number. Frames are a letter, a number, a
length and bytes: `p` the port, `o` a connection was opened, `d` bytes of it, `e` its end. It ends with its stdin.
Kept to what Python 3.7 understands, since the image is the user's.
"""

import asyncio
import contextlib
import itertools
import struct
import sys

HEAD = struct.Struct(">cII")
UNREAD = 64 << 20


def send(kind: bytes, number: int, data: bytes = b"") -> None:
    sys.stdout.buffer.write(HEAD.pack(kind, number, len(data)) + data)
    sys.stdout.buffer.flush()


async def main() -> None:
    writers = {}
    numbers = itertools.count(1)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = next(numbers)
        writers[number] = writer
        send(b"o", number)
        try:
            while True:
                data = await reader.read(65536)
                if not data:
                    break
                send(b"d", number, data)
        except OSError:
            pass
        send(b"e", number)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    send(b"p", server.sockets[0].getsockname()[1])
    stdin = asyncio.StreamReader()
    await asyncio.get_event_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    while True:
        kind, number, length = HEAD.unpack(await stdin.readexactly(HEAD.size))
        data = await stdin.readexactly(length)
        writer = writers.get(number)
        if writer is None:
            continue
        if kind == b"d" and writer.transport.get_write_buffer_size() < UNREAD:
            writer.write(data)
        else:
            writers.pop(number).close()


if __name__ == "__main__":
    with contextlib.suppress(asyncio.IncompleteReadError):
        asyncio.run(main())
