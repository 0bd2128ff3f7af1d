"""The proxy of a box: who is admitted, what a request means, and that bytes arrive."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.runtimes.docker.egress import AllowList, Proxy, Wish, read_wish
from rollwright.runtimes.docker.relay import Relay


@pytest.mark.parametrize(
    ("host", "port", "admitted"),
    [
        ("packages.example", 443, True),
        ("Packages.Example.", 80, True),
        ("packages.example", 22, False),
        ("evil-packages.example", 443, False),
        ("packages.example.evil.example", 443, False),
        ("a.b.example", 8443, True),
        ("b.example", 8443, False),
        ("a.b.example", 443, False),
        ("", 443, False),
    ],
)
def test_only_the_listed_are_admitted(host, port, admitted):
    assert AllowList(["packages.example", "*.b.example:8443"]).admits(host, port) is admitted


def test_requests_are_read():
    assert read_wish(b"CONNECT A.example:443 HTTP/1.1\r\nHost: x\r\n\r\n") == Wish("a.example", 443)
    plain = read_wish(b"GET http://a.example:81/x?y HTTP/1.1\r\nHost: a\r\nProxy-Connection: keep-alive\r\n\r\n")
    assert plain == Wish("a.example", 81, b"GET /x?y HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    for wrong in (b"GET / HTTP/1.1", b"GET http://u:p@a/ HTTP/1.1", b"CONNECT a:99999 HTTP/1.1", b"\x16\x03\x01"):
        assert read_wish(wrong + b"\r\n\r\n") is None


@given(st.binary(max_size=300))
def test_no_head_breaks_the_reader(head):
    wish = read_wish(head)
    assert wish is None or wish.host


async def _asked(port, request, rest=b""):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = b""
    if rest:
        answer = await reader.readuntil(b"\r\n\r\n")
        writer.write(rest)
    writer.write_eof()
    answer += await reader.read()
    writer.close()
    return answer


async def _upper(reader, writer):
    writer.write((await reader.read()).upper())
    writer.write_eof()


async def test_the_proxy_carries_to_the_listed_and_refuses_others():
    server, proxy = Relay(_upper), None
    server.attach(there := await asyncio.start_server(server.accept, "127.0.0.1", 0))
    port = there.sockets[0].getsockname()[1]
    proxy = Relay(Proxy(AllowList([f"127.0.0.1:{port}"])).serve)
    proxy.attach(here := await asyncio.start_server(proxy.accept, "127.0.0.1", 0))
    at = here.sockets[0].getsockname()[1]
    try:
        tunnel = await _asked(at, f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode(), b"hello")
        assert tunnel.endswith(b"\r\n\r\nHELLO")
        plain = await _asked(at, f"GET http://127.0.0.1:{port}/x HTTP/1.1\r\n\r\n".encode())
        assert plain == b"GET /X HTTP/1.1\r\nCONNECTION: CLOSE\r\n\r\n"
        refused = await _asked(at, b"CONNECT 127.0.0.1:1 HTTP/1.1\r\n\r\n")
        assert refused.startswith(b"HTTP/1.1 403 ")
        assert (await _asked(at, b"GET / HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
    finally:
        await proxy.close()
        await server.close()
