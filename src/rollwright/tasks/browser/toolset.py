"""Browser tools: one Chromium per environment, one context (cookies, storage, pages) per rollout.

The browser runs on this host, outside of any box, so what pages may come from is an allow-list. Every action answers
with the address, the title and a screenshot. What the page or the model got wrong is told to the model; a browser that
is gone fails the rollout. Chromium's own sandbox is on, unless we are root, where Chromium has none.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from rollwright.tasks.marks import tool
from rollwright.tasks.threads import HOOK_THREADS
from rollwright.tasks.tools import Picture, ToolRefusal
from rollwright.tasks.toolset import Toolset
from rollwright.wire import Text, UsageError

from .journeys import Journeys
from .places import AllowedHosts, find_chromium, runs_as_root

_NO_CHROMIUM = "there is no Chromium here: install your system's chromium, or run: playwright install chromium"
_MAX_PAGES = 8
"""Windows of one rollout; the oldest is closed beyond it."""
_FLAGS = ("--disable-background-networking", "--disable-component-update", "--no-first-run", "--disable-dev-shm-usage")


class BrowserToolset(Toolset):
    """Open, click, type, scroll, look. `names` maps host names to addresses, such as `{"shop.test": "127.0.0.1:8000"}`,
    for sites that have no name of their own."""

    def __init__(
        self,
        allow_hosts: Sequence[str],
        *,
        names: Mapping[str, str] | None = None,
        program: str = "",
        width: int = 1024,
        height: int = 768,
        timeout_s: float = 15.0,
    ) -> None:
        self._allowed = AllowedHosts(allow_hosts)
        self.names: dict[str, str] = dict(names or {})
        self._program = program
        self._size = {"width": width, "height": height}
        self._timeout_ms = timeout_s * 1000
        self._driver: Any = None
        self._browser: Any = None
        self._contexts: dict[str, asyncio.Task[Any]] = {}
        """Being made, or made. A call that is cancelled meanwhile leaves it to `leave`, which knows of it."""
        self._journeys: dict[str, Journeys] = {}

    def __repr__(self) -> str:
        return f"<BrowserToolset {'open' if self._browser else 'closed'}, {len(self._contexts)} contexts>"

    async def open(self) -> None:
        # Importing takes a second, and looking for a program touches the disk.
        playwright = await HOOK_THREADS.run(_playwright)
        program = await HOOK_THREADS.run(lambda: find_chromium(self._program))
        self._driver = await playwright.async_playwright().start()
        if not program:
            own = self._driver.chromium.executable_path
            program = await HOOK_THREADS.run(lambda: find_chromium(own, or_else=_NO_CHROMIUM))
        self._browser = await self._driver.chromium.launch(
            executable_path=program,
            chromium_sandbox=not runs_as_root(),
            args=[*_FLAGS, f"--host-resolver-rules={self._allowed.resolver_rules(self.names)}"],
        )

    async def close(self) -> None:
        for making in self._contexts.values():
            making.cancel()
        await asyncio.gather(*self._contexts.values(), return_exceptions=True)
        self._contexts.clear()
        self._journeys.clear()
        browser, self._browser = self._browser, None
        driver, self._driver = self._driver, None
        try:
            if browser is not None:
                await browser.close()
        finally:
            if driver is not None:
                await driver.stop()

    async def leave(self, rollout: str) -> None:
        making = self._contexts.pop(rollout, None)
        if making is not None:
            context = await making
            self._journeys.pop(rollout, None)
            await context.close()

    @tool
    async def browser_open(self, rollout: str, url: str) -> list[Text | Picture]:
        """Open an address (http or https) and see the page."""
        if not self._allowed.admit(url):
            raise ToolRefusal(f"{url[:200]} may not be opened.")
        async with self._acting(rollout) as page:
            await page.goto(url, timeout=self._timeout_ms)
        return await self._seen(rollout)

    @tool
    async def browser_click(self, rollout: str, x: int, y: int) -> list[Text | Picture]:
        """Click at a point of the screenshot, in pixels from its upper left corner."""
        async with self._acting(rollout) as page:
            await page.mouse.click(x, y)
        return await self._seen(rollout)

    @tool
    async def browser_click_on(self, rollout: str, words: str) -> list[Text | Picture]:
        """Click on a link, button or field by the words that it shows or is labelled with."""
        async with self._acting(rollout) as page:
            target = page.get_by_role("link", name=words).or_(page.get_by_role("button", name=words))
            target = target.or_(page.get_by_label(words)).or_(page.get_by_placeholder(words))
            await target.first.click(timeout=self._timeout_ms)
        return await self._seen(rollout)

    @tool
    async def browser_type(self, rollout: str, text: str, enter: bool = False) -> list[Text | Picture]:
        """Type into what was clicked last; `enter` presses Enter afterwards."""
        async with self._acting(rollout) as page:
            await page.keyboard.type(text)
            if enter:
                await page.keyboard.press("Enter")
        return await self._seen(rollout)

    @tool
    async def browser_scroll(self, rollout: str, down: int) -> list[Text | Picture]:
        """Scroll down by so many pixels, or up where the number is negative."""
        async with self._acting(rollout) as page:
            await page.evaluate("by => window.scrollBy({top: by, behavior: 'instant'})", down)
        return await self._seen(rollout)

    @tool
    async def browser_screenshot(self, rollout: str) -> list[Text | Picture]:
        """See the page as it is now."""
        return await self._seen(rollout)

    async def _seen(self, rollout: str) -> list[Text | Picture]:
        async with self._acting(rollout) as page:
            await self._journeys[rollout].over(page)
            title = await page.title()
            shot = await page.screenshot(timeout=self._timeout_ms, animations="disabled")
            return [Text(f"{page.url[:500]}\n{title[:500]}"), Picture(shot)]

    @asynccontextmanager
    async def _acting(self, rollout: str) -> AsyncIterator[Any]:
        """The page that the rollout looks at. What goes wrong is told to the model, unless the browser is gone."""
        try:
            yield await self._page(rollout)
        except _playwright().Error as error:
            if self._browser is None or not self._browser.is_connected():
                raise
            raise ToolRefusal(f"The browser could not do that: {str(error).splitlines()[0][:300]}") from error

    async def _page(self, rollout: str) -> Any:
        if rollout not in self._contexts:
            self._contexts[rollout] = asyncio.create_task(self._make_context(rollout), name=f"browser {rollout}")
        context = await asyncio.shield(self._contexts[rollout])
        while len(context.pages) > _MAX_PAGES:
            await context.pages[0].close()
        # The newest window is the one in front.
        return context.pages[-1] if context.pages else await context.new_page()

    async def _make_context(self, rollout: str) -> Any:
        context = await self._browser.new_context(
            viewport=self._size, accept_downloads=False, service_workers="block", locale="en-US", timezone_id="UTC"
        )
        self._journeys[rollout] = Journeys(context, self._timeout_ms / 1000)
        context.set_default_timeout(self._timeout_ms)
        await context.route("**/*", self._route)
        await context.route_web_socket("**/*", self._route_socket)
        await context.new_page()
        return context

    async def _route(self, route: Any) -> None:
        if self._allowed.admit(route.request.url):
            await route.continue_()
        else:
            await route.abort("blockedbyclient")

    async def _route_socket(self, socket: Any) -> None:
        if self._allowed.admit(socket.url):
            socket.connect_to_server()
        else:
            await socket.close()


def _playwright() -> Any:
    try:
        return importlib.import_module("playwright.async_api")
    except ImportError as error:
        raise UsageError("browser tools need the extra 'browser': pip install 'rollwright[browser]'") from error
