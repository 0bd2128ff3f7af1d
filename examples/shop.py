"""A shop on this machine, and a model that buys something in it with a real browser (extra `browser`, and a Chromium):

rollwright eval examples/shop.py

The site is served on loopback for as long as the run lasts; the browser knows it as http://shop.test/. Each rollout has
its own cookies, so its own basket. The code on the last page, which only a screenshot shows, is what is asked for.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence

from aiohttp import web

from rollwright.tasks import Task, Taskset, Toolset, reward
from rollwright.tasks.browser import BrowserToolset
from rollwright.wire import Message, ToolCall, assistant

ITEMS = {"blue-kettle": "Blue kettle", "red-kettle": "Red kettle", "tin-cup": "Tin cup", "wool-rug": "Wool rug"}


def code_of(item: str) -> str:
    return hashlib.sha256(f"order {item}".encode()).hexdigest()[:6].upper()


def page(title: str, body: str) -> web.Response:
    style = "body{font:20px sans-serif;margin:40px}"
    text = f"<!doctype html><title>{title}</title><style>{style}</style><h1>{title}</h1>{body}"
    return web.Response(text=text, content_type="text/html")


async def home(request: web.Request) -> web.Response:
    wanted = request.query.get("q", "").lower()
    found = {item: name for item, name in ITEMS.items() if wanted and wanted in name.lower()}
    links = "".join(f'<p><a href="/item/{item}">{name}</a>' for item, name in found.items())
    return page("Shop", f'<form><label>Search <input name="q"></label></form>{links}')


async def item(request: web.Request) -> web.Response:
    name = ITEMS[request.match_info["item"]]
    return page(name, '<form method="post"><button>Put into basket</button></form>')


async def put(request: web.Request) -> web.Response:
    answer = page("Basket", '<form method="post" action="/order"><button>Order</button></form>')
    answer.set_cookie("basket", request.match_info["item"])
    return answer


async def order(request: web.Request) -> web.Response:
    basket = request.cookies.get("basket", "")
    return page("Thank you", f"<p>Your order has the code <b>{code_of(basket)}</b>") if basket else page("Empty", "")


class Shop(BrowserToolset):
    """The browser, with the site that it looks at."""

    def __init__(self) -> None:
        super().__init__(["shop.test"])
        self._site: web.AppRunner | None = None

    async def open(self) -> None:
        app = web.Application()
        app.add_routes([web.get("/", home), web.get("/item/{item}", item), web.post("/item/{item}", put)])
        app.add_routes([web.post("/order", order)])
        self._site = web.AppRunner(app, access_log=None)
        await self._site.setup()
        await web.TCPSite(self._site, "127.0.0.1", 0).start()
        self.names["shop.test"] = f"127.0.0.1:{self._site.addresses[0][1]}"
        await super().open()

    async def close(self) -> None:
        await super().close()
        if self._site is not None:
            await self._site.cleanup()


class Purchase(Task, frozen=True):
    item: str

    @reward
    def bought(self, reply: str) -> bool:
        return code_of(self.item) in reply

    def oracle(self, messages: Sequence[Message]) -> Message:
        steps: list[tuple[str, dict[str, object]]] = [
            ("browser_open", {"url": "http://shop.test/"}),
            ("browser_click_on", {"words": "Search"}),
            ("browser_type", {"text": ITEMS[self.item].split()[-1], "enter": True}),
            ("browser_click_on", {"words": ITEMS[self.item]}),
            ("browser_click_on", {"words": "Put into basket"}),
            ("browser_click_on", {"words": "Order"}),
        ]
        done = sum(bool(message.tool_calls) for message in messages)
        if done == len(steps):
            return assistant(f"The code is {code_of(self.item)}.")
        name, arguments = steps[done]
        return assistant("", ToolCall(f"step-{done}", name, json.dumps(arguments)))


class Shopping(Taskset, frozen=True):
    def tasks(self) -> Iterable[Task]:
        for item, name in ITEMS.items():
            prompt = f"Buy one {name} at http://shop.test/ and tell me the code of the order."
            yield Purchase(id=item, prompt=prompt, item=item)

    def toolsets(self) -> Sequence[Toolset]:
        return [Shop()]
