"""The picture of the live page for the docs: `python -m tests.ui.picture`.

A minute of chats on simulated pods, in real time, with a canary. Not a test: what it shows depends on this machine.
"""

from __future__ import annotations

import asyncio
import random

from PIL import Image

from tests.browser import BUILD, Browser
from tests.net.world import CHAT, LONG, World, assistant, user, world

DOCS = BUILD.parent / "docs" / "img" / "ui.png"
TALKERS = 14
DECISIONS = 150


async def talker(w: World, number: int) -> None:
    """Conversations of different lengths, one after the other."""
    dice = random.Random(number)
    while True:
        messages = [user(f"{number} {dice.random()} " + LONG * dice.choice([3, 12, 25, 50]))]
        for _ in range(dice.randint(3, 8)):
            body = {"model": "sim", "messages": messages, "max_tokens": dice.choice([64, 128, 256]), "stream": True}
            reply = await w.post(CHAT, body)
            if reply.status != 200:
                break
            messages += [assistant(reply.streamed_text), user("And then? " + LONG * dice.choice([1, 1, 2, 8]))]
            await asyncio.sleep(dice.uniform(0.2, 1.2))


async def main() -> None:
    options = {"admin.port": 0, "canary.percent": 70.0, "health.interval_s": 1.0}
    pods = {"profile": "h100-llama3.1-8b", "max_model_len": 131072}
    with Browser() as browser:
        async with world(prefill=1, decode=3, policy="ppd", pod=pods, **options) as w:
            tasks = [asyncio.ensure_future(talker(w, number)) for number in range(TALKERS)]
            await asyncio.to_thread(browser.look, 1440, 960)
            await asyncio.to_thread(browser.open, f"{w.running.administration.url}/ui")
            await w.watcher.until(lambda: len(w.watcher.records) >= DECISIONS, timeout_s=120)
            path = await asyncio.to_thread(browser.picture, "ui-docs.png")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    DOCS.parent.mkdir(exist_ok=True)
    Image.open(path).convert("RGB").quantize(256).save(DOCS, optimize=True)


if __name__ == "__main__":
    asyncio.run(main())
