"""What a container reaches and who reaches it, under each policy, on a real engine."""

import asyncio
from contextlib import AsyncExitStack

import aiohttp
import pytest
from engine_books import networks

from rollwright.runtimes.asking import served
from rollwright.runtimes.state import differences
from rollwright.runtimes.testing import sh

_GET = """
import sys, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode(), end="")
except Exception as error:
    print(getattr(error, "code", type(error).__name__), end="")
"""


# The loopback is not asked for through a proxy as a rule, and it is all that these tests have.
_ASK_ALWAYS = {"no_proxy": "", "NO_PROXY": ""}


async def _get(box, url, env=None):
    return (await box.run(["python3", "-c", _GET, url], env=env, timeout_s=60)).text


async def test_without_a_network_only_what_is_forwarded_is_reached(box):
    async with served("secret") as port:
        assert await _get(box, f"http://127.0.0.1:{port}/") == "URLError"
        assert await _get(box, f"{await box.forward(port)}/") == "secret"
    assert await sh(box, "ls /sys/class/net") == "lo\n"


@pytest.mark.parametrize("far_away", [False, True])
async def test_an_allow_list_admits_its_hosts_and_no_other(far_away, make, request):
    if far_away:
        request.getfixturevalue("far")
    async with AsyncExitStack() as stack:
        listed, other = [await stack.enter_async_context(served(word)) for word in ("listed", "other")]
        box = await stack.enter_async_context(make(network="allow", allow_hosts=(f"127.0.0.1:{listed}",)))
        fresh = await box.inspect()
        assert await _get(box, f"http://127.0.0.1:{listed}/", _ASK_ALWAYS) == "listed"
        assert await _get(box, f"http://127.0.0.1:{other}/", _ASK_ALWAYS) == "403"
        assert await _get(box, f"http://localhost:{listed}/", _ASK_ALWAYS) == "403"
        assert await _get(box, f"http://127.0.0.1:{listed}/") == "URLError", "the box has a way around its proxy"
        await box.reset()
        assert differences(fresh, await box.inspect()) == []
        assert await _get(box, f"http://127.0.0.1:{listed}/", _ASK_ALWAYS) == "listed"


async def test_a_network_of_its_own_is_made_and_freed(make, engine_socket, far):
    async with make(network="full") as box:
        assert f"rollwright-{box.name}" in await networks(engine_socket)
        fresh = await box.inspect()
        async with await box.open_process(["python3", "-u", "-m", "http.server", "8123"]) as server:
            assert b"8123" in await server.read()
            async with aiohttp.ClientSession() as session, session.get(await box.expose(8123)) as answer:
                assert answer.status == 200
        await box.reset()
        assert differences(fresh, await box.inspect()) == []
    assert f"rollwright-{box.name}" not in await networks(engine_socket)


async def test_a_network_of_choice_is_joined(make):
    async with served("seen") as port, make(network="full", network_name="host") as box:
        assert await _get(box, f"http://127.0.0.1:{port}/") == "seen"


async def test_a_server_in_the_box_is_reached_from_here(box):
    url = await box.expose(8123)
    async with await box.open_process(["python3", "-u", "-m", "http.server", "8123", "--bind", "127.0.0.1"]) as server:
        assert b"8123" in await server.read()
        await box.write("index.html", b"from inside")
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert await answer.text() == "from inside"


async def test_a_reset_closes_every_door(box):
    async with served("x") as port:
        url = await box.forward(port)
        exposed = await box.expose(8123)
        await box.reset()
        assert await _get(box, url) == "URLError"
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", int(exposed.rpartition(":")[2]))
