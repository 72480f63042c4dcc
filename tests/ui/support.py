"""A gateway with its live page in a browser, and traffic to look at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from tests.browser import Browser
from tests.net.world import CHAT, LONG, World, assistant, user, world

ROWS = "document.querySelectorAll('#decision-rows tr').length"
LIVE = "document.querySelector('#link').dataset.state === 'live'"


class Page:
    """The browser's methods, each in a thread so that the gateway goes on, and the world behind the page."""

    def __init__(self, browser: Browser, w: World) -> None:
        self.w = w
        self.url = f"{w.running.administration.url}/ui"
        self._browser = browser

    def __getattr__(self, name: str) -> Any:
        return partial(asyncio.to_thread, getattr(self._browser, name))

    async def show(self) -> None:
        """Open it and wait until it is live."""
        await self.open(self.url)
        await self.until(f"{LIVE} && document.querySelector('#pods tr') !== null")

    async def enter(self, token: str) -> None:
        """Type a token and send it."""
        await self.type("#token", token)
        await self.click("#token-form button")

    async def settled(self, selector: str, text: str) -> None:
        """Wait until an element says that."""
        await self.until(f"document.querySelector({selector!r}).textContent.includes({text!r})")

    async def heading(self) -> dict[str, str]:
        """The facts in the line at the top."""
        return dict(
            await self.run(
                "return Object.fromEntries([...document.querySelectorAll('[data-fact]')]"
                ".map((each) => [each.dataset.fact, each.textContent]))"
            )
        )


@asynccontextmanager
async def page(browser: Browser, width: int = 1440, height: int = 900, **options: Any) -> AsyncIterator[Page]:
    """`options` are those of `world`."""
    async with world(**{"policy": "ppd", "admin.port": 0, **options}) as w:
        found = Page(browser, w)
        await found.look(width, height)
        await found.complaints()
        yield found
        await asyncio.to_thread(browser.driver.get, "about:blank")


async def talk(w: World, name: str, turns: int = 3) -> list[str]:
    """A conversation of streamed turns; gives the request ids."""
    messages, ids = [user(f"{name} {LONG}")], []
    for turn in range(turns):
        request_id = f"{name}-{turn}"
        body = {"model": "sim", "messages": messages, "max_tokens": 8, "stream": True}
        reply = await w.post(CHAT, body, {"X-Request-Id": request_id})
        assert reply.status == 200
        messages += [assistant(reply.streamed_text), user(f"And then? {turn} {LONG}")]
        ids.append(request_id)
    return ids
