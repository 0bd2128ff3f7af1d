"""A real browser: pages are seen as pictures, rollouts do not see one another, and nothing but what is allowed is
reached. `scripts/test` installs Chromium where it may; without it these skip."""

import asyncio
import importlib.util
import struct
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from rollwright.dialects import ImageStore
from rollwright.engines.function import FunctionEngine
from rollwright.rollouts import Environment
from rollwright.tasks import load_tasks, make_taskset
from rollwright.tasks.browser import BrowserToolset, find_chromium
from rollwright.tasks.browser.places import AllowedHosts
from rollwright.tasks.oracle import Solver
from rollwright.wire import Image, Text, ToolCall, ToolResult, UsageError

SHOP = str(Path(__file__).parents[2] / "examples" / "shop.py")
NO_BROWSER = (
    "the extra 'browser' (playwright) is missing"
    if importlib.util.find_spec("playwright") is None
    else ""
    if find_chromium()
    else "no Chromium is installed; on Debian, as root: apt-get install chromium"
)
needs_browser = pytest.mark.skipif(bool(NO_BROWSER), reason=NO_BROWSER)

PAGE = """<!doctype html><title>{title}</title><body style="margin:0;height:3000px">
<a href="/next" style="position:absolute;left:100px;top:100px">onwards</a>
<label>Name <input id="name" oninput="document.title = this.value"></label>
<button onclick="new WebSocket('{other}'.replace('http', 'ws'));
fetch('{other}').then(() => document.title = 'reached', () => document.title = 'blocked')">ask</button>
<script>document.cookie = "seen=" + ((document.cookie.match(/\\d+/) || [0])[0] * 1 + 1);
document.title += " " + document.cookie;
addEventListener("scroll", () => document.title = "at " + scrollY)</script>"""


@asynccontextmanager
async def site():
    """A small site; also how often it was asked."""
    asked = []

    async def answer(request):
        asked.append(request.path)
        if request.path == "/away":
            raise web.HTTPFound(f"http://127.0.0.1:{port}/secret")
        return web.Response(
            text=PAGE.format(title=request.path, other=f"http://127.0.0.1:{port}/secret"), content_type="text/html"
        )

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    try:
        yield port, asked
    finally:
        await runner.cleanup()


@asynccontextmanager
async def browsing(port, **options):
    browser = BrowserToolset(["site.test"], names={"site.test": f"127.0.0.1:{port}"}, width=640, height=480, **options)
    with ImageStore() as store:
        images = store.hold()
        try:
            await browser.open()

            async def do(name, arguments="{}", rollout="r1"):
                message = await browser.call(ToolCall("c", f"browser_{name}", arguments), {"rollout": rollout}, images)
                (result,) = message.parts
                assert isinstance(result, ToolResult)
                return result

            yield browser, do, images
        finally:
            await browser.close()


def title(result):
    assert not result.is_error, result
    return result.content[0].text.split("\n")[1]


@needs_browser
async def test_a_page_is_seen_and_acted_on():
    async with site() as (port, _), browsing(port) as (browser, do, images):
        first = await do("open", '{"url": "http://site.test/start"}')
        text, picture = first.content
        assert text == Text("http://site.test/start\n/start seen=1")
        shot = images.get(picture)
        assert shot.startswith(b"\x89PNG")
        assert struct.unpack(">II", shot[16:24]) == (640, 480)
        assert title(await do("click", '{"x": 110, "y": 110}')) == "/next seen=2"
        await do("click_on", '{"words": "Name"}')
        assert title(await do("type", '{"text": "Ann"}')) == "Ann"
        assert title(await do("scroll", '{"down": 500}')).startswith(("Ann", "at 500"))
        assert title(await do("screenshot")) == "at 500"
        assert repr(browser) == "<BrowserToolset open, 1 contexts>"
    assert repr(browser) == "<BrowserToolset closed, 0 contexts>"


@needs_browser
async def test_rollouts_do_not_see_one_another():
    async with site() as (port, _), browsing(port) as (browser, do, _images):
        for _ in range(2):
            await do("open", '{"url": "http://site.test/a"}', "one")
        assert title(await do("open", '{"url": "http://site.test/a"}', "two")) == "/a seen=1"
        assert title(await do("screenshot", rollout="one")) == "/a seen=2"
        await browser.leave("one")
        await browser.leave("never seen")
        assert title(await do("open", '{"url": "http://site.test/a"}', "one")) == "/a seen=1"


@needs_browser
async def test_a_cancelled_call_leaves_no_context_behind():
    async with site() as (port, _), browsing(port) as (browser, do, _images):
        opening = asyncio.create_task(do("open", '{"url": "http://site.test/a"}'))
        while not browser._contexts:
            await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await browser.leave("r1")
        assert (browser._browser.contexts, browser._contexts, browser._journeys) == ([], {}, {})


@needs_browser
async def test_only_allowed_hosts_are_reached():
    async with site() as (port, asked), browsing(port) as (_, do, _images):
        for url in (f"http://127.0.0.1:{port}/secret", "file:///etc/passwd", "chrome://version", "http://other.test/"):
            refused = await do("open", f'{{"url": "{url}"}}')
            assert refused.is_error
            assert "may not be opened" in refused.content[0].text
        await do("open", '{"url": "http://site.test/a"}')
        await do("click_on", '{"words": "ask"}')
        assert title(await do("screenshot")) == "blocked"
        assert (await do("open", '{"url": "http://site.test/away"}')).is_error
        assert asked == ["/a", "/away"]


@needs_browser
async def test_what_cannot_be_done_is_told_to_the_model():
    async with site() as (port, _), browsing(port, timeout_s=0.5) as (_, do, _images):
        await do("open", '{"url": "http://site.test/a"}')
        missing = await do("click_on", '{"words": "no such thing"}')
        assert missing.is_error
        assert "could not do that" in missing.content[0].text
        assert (await do("click", '{"x": "left"}')).is_error
        assert title(await do("screenshot")) == "/a seen=1"


@needs_browser
async def test_the_shop_sells():
    """The example, with its site, as `rollwright eval examples/shop.py` runs it."""
    taskset = make_taskset(SHOP, {})
    tasks = load_tasks(taskset)
    async with Environment(taskset).serving(FunctionEngine(lambda call: Solver(tasks)(call.messages)), "m") as serving:
        trace = await serving.run(tasks[1])
    assert (trace.failure, trace.reward) == (None, 1.0)
    seen = [part for message in trace.messages for part in message.parts if isinstance(part, ToolResult)]
    titles = [title(result) for result in seen]
    assert titles == ["Shop", "Shop", "Shop", "Red kettle", "Basket", "Thank you"]
    assert all(isinstance(result.content[1], Image) for result in seen)


def test_a_browser_needs_to_be_told_where_it_may_go():
    with pytest.raises(UsageError, match="needs allow_hosts"):
        BrowserToolset([])
    with pytest.raises(UsageError, match="no browser program 'no-such-browser'"):
        find_chromium("no-such-browser")


@pytest.mark.parametrize(
    ("url", "admitted"),
    [
        ("http://a.test/x", True),
        ("https://A.TEST:8443/", True),
        ("http://b.test:81/", True),
        ("http://b.test/", False),
        ("http://a.test@evil.test/", False),
        ("http://a.test.evil.test/", False),
        ("http://evil.test/?a.test", False),
        ("javascript:alert(1)", False),
        ("file:///a.test", False),
        ("http://a.test:99999999/", False),
        ("http://[::1", False),
        ("", False),
        ("about:blank", True),
    ],
)
def test_hosts_are_admitted_by_name_and_port(url, admitted):
    assert AllowedHosts(["a.test", "b.test:81"]).admit(url) is admitted


@given(url=st.text(max_size=40))
def test_no_other_text_is_an_address_that_is_admitted(url):
    assert not AllowedHosts(["nowhere.test"]).admit(f"http://{url}") or "nowhere.test" in url.lower()
