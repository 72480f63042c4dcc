"""The live page in a real browser: what it shows of a gateway under traffic, and what it lets people change."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path

import pytest

from gateway.core.drift.monitor import Change
from gateway.core.policies import MeasuredTable
from gateway.core.weights import Weights
from gateway.net.records import Arm
from tests.browser import Browser, needs_axe, needs_browser
from tests.net.world import CHAT, user
from tests.ui.support import LIVE, ROWS, page, talk

pytestmark = needs_browser
TOKEN = "the-token-of-this-test"


async def test_the_page_shows_the_gateway_and_the_console_says_nothing(browser: Browser) -> None:
    async with page(browser, prefill=2, decode=2, **{"canary.percent": 100}) as p:
        await asyncio.gather(*(talk(p.w, f"talk-{number}") for number in range(4)))
        await p.show()
        await p.until(f"{ROWS} === 12 && document.querySelectorAll('#map td').length === 15")
        facts = await p.heading()
        assert (facts["policy"], facts["weights"], facts["canary"]) == ("ppd", "ttft 1 : tpot 1", "on, 100 %")
        assert facts["table"].startswith("Llama-3.1-8B, simulated, ")
        assert facts["conversations"] == "4"
        assert await p.text("#pods-sum") == "4 of 4 up"
        roles = await p.run("return [...document.querySelectorAll('#pods .role')].map((each) => each.textContent)")
        assert sorted(roles) == ["D", "D", "P", "P"]
        assert "measured on simulated pods" in await p.text("#alarms")
        drawn = await p.run("return document.querySelectorAll('#flow .nodes > g').length")
        assert drawn == 4
        assert "never moved" in await p.text("#flow-sum")
        moved = sum((record.moved_tokens or 0) > 0 for record in p.w.watcher.records)
        assert moved > 0, "turn 1 went through P"
        assert await p.run("return document.querySelectorAll('#flow .lines path').length") > 0
        assert await p.complaints() == []


async def test_decisions_stream_are_filtered_paused_and_explained(browser: Browser) -> None:
    async with page(browser) as p:
        await p.show()
        first = await talk(p.w, "first")
        await p.until(f"{ROWS} === 3")
        newest = await p.run("return document.querySelector('#decision-rows tr').textContent")
        assert "first-2" in newest
        assert "local" in newest, "the short turns of a small context go straight to the decode pod"
        await p.type("#filter-id", "first-1")
        await p.until(f"{ROWS} === 1")
        await p.type("#filter-id", " ")
        await p.click("#pause")
        await talk(p.w, "second")
        await p.settled("#decisions-sum", "paused, 3 more came")
        assert await p.run(f"return {ROWS}") == 3
        await p.click("#pause")
        await p.until(f"{ROWS} === 6")
        await p.run("document.querySelector('#filter-route').value = 'pd'")
        await p.run("document.querySelector('#filter-route').dispatchEvent(new Event('input'))")
        await p.until(f"{ROWS} === 2")
        await p.press(f"[data-id={first[0]!r}] button", "\ue007")
        await p.settled("#explain-body", "Its conversation now")
        told = await p.text("#explain-body")
        assert "turn 1: nothing resident" in told
        assert p.w.prefill[0].url in told
        await p.press("#explain-close", "\ue00c")
        assert await p.run("return document.activeElement.closest('tr').dataset.id") == first[0], "Escape leads back"
        assert await p.complaints() == []


async def test_panels_stay_where_they_are_whatever_comes(browser: Browser) -> None:
    where = (
        "return [...document.querySelectorAll('.panel')].map((each) => JSON.stringify(each.getBoundingClientRect()))"
    )
    async with page(browser, width=1440, height=900) as p:
        await p.show()
        await p.settled("#map-words", "decisions")
        before = await p.run(where)
        assert len(before) == 6
        await asyncio.gather(*(talk(p.w, f"talk-{number}") for number in range(4)))
        await p.until(f"{ROWS} === 12 && document.querySelector('#flow .lines path') !== null")
        assert await p.run(where) == before


async def test_what_a_client_names_its_request_is_shown_as_text(browser: Browser) -> None:
    name = "<img/src=x/onerror=alert(1)>"
    async with page(browser) as p:
        await p.show()
        reply = await p.w.post(CHAT, {"model": "sim", "messages": [user()], "max_tokens": 4}, {"X-Request-Id": name})
        assert reply.status == 200
        await p.until(f"{ROWS} === 1")
        assert await p.run("return document.querySelector('#decision-rows img')") is None
        await p.click("#decision-rows button")
        await p.until("document.querySelector('#explain-body dl') !== null")
        record = await p.w.record(1)
        assert await p.text("#explain-title") == f"Request {record.request_id}"
        assert await p.complaints() == []


async def test_weights_are_previewed_on_the_map_and_count_once_applied(browser: Browser) -> None:
    scores = "return [...document.querySelectorAll('#map td span')].map((each) => each.textContent).join(' ')"
    async with page(browser) as p:
        await p.show()
        await p.until("document.querySelectorAll('#map td').length === 15")
        before = await p.run(scores)
        await p.run(
            "const slider = document.querySelector('#w-tpot'); slider.value = 4;"
            "slider.dispatchEvent(new Event('input', {bubbles: true}))"
        )
        await p.settled("#weights-said", "preview; in use: ttft 1 : tpot 1")
        await p.until(f"(() => {{ {scores} }})() !== {before!r}")
        assert p.w.gateway.parts.settings.weights.default == Weights(1, 1), "nothing has changed yet"
        await p.click("#weights-apply")
        await p.settled("[data-fact=weights]", "ttft 1 : tpot 4")
        assert p.w.gateway.parts.settings.weights.default == Weights(1, 4)
        assert await p.text("#said") == "Weights in use: ttft 1 : tpot 4."
        assert await p.text("#weights-said") == "as they are in use"
        assert await p.complaints() == []


async def test_the_canary_is_set_turned_off_and_on(browser: Browser) -> None:
    async with page(browser) as p:
        await p.show()
        await p.type("#canary-percent", "25")
        await p.click("#canary button[type=submit]")
        await p.settled("#canary-state", "on, 25 %")
        await p.click("#canary-turn")
        await p.settled("#canary-state", "off")
        assert not p.w.gateway.parts.canary.takes(b"\0" * 16)
        await talk(p.w, "talk", 1)
        assert (await p.w.record(1)).arm == Arm.BASELINE
        await p.settled("#canary-turn", "Turn on")
        await p.click("#canary-turn")
        await p.settled("#canary-state", "on, 25 %")
        await p.click("#reload")
        await p.settled("#said", "cells each")
        assert await p.complaints() == []


async def test_whoever_has_no_token_looks_and_changes_nothing(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    async with page(browser, **{"admin.token_file": str(file), "admin.view_without_token": True}) as p:
        await talk(p.w, "talk", 2)
        await p.show()
        await p.until(f"{ROWS} === 2")
        drained = p.w.decode[0].url
        button = f"#pods button[data-url={drained!r}]"
        assert await p.run("return [...document.querySelectorAll('.changes')].every((each) => each.disabled)")
        assert "Read only" in await p.text("#token-form")
        refused = "return fetch('api/v1/pods/drain', {method: 'POST', body: JSON.stringify({url: arguments[0]}), "
        refused += "headers: {'Content-Type': 'application/json'}}).then((answer) => answer.status)"
        assert await p.run(refused, drained) == 401, "nor does it by hand"
        assert len(await p.complaints()) == 1, "the refusal"
        await p.enter("another-token")
        await p.settled("#token-said", "That token is not right.")
        assert await p.run("return document.querySelector(arguments[0]).disabled", button)
        await p.enter(TOKEN)
        await p.until(f"!document.querySelector({button!r}).disabled")
        await p.click(button)
        await p.settled("#confirm-words", f"Drain {drained}?")
        await p.click("#confirm-no")
        pod = p.w.gateway.parts.fleet.get(drained)
        assert pod is not None
        assert not pod.draining
        await p.click(button)
        await p.click("#confirm-yes")
        await p.settled(button, "Undrain")
        assert pod.draining
        await p.settled("#alarms", "It is being drained")
        await p.click(button)
        await p.until(f"document.querySelector({button!r}).textContent === 'Drain'")
        assert not pod.draining
        kept = await p.run("return [Object.values(sessionStorage), Object.values(localStorage), document.cookie]")
        assert kept == [[TOKEN], [], ""]
        assert TOKEN not in await p.run("return document.documentElement.outerHTML")
        await p.click("#forget")
        await p.until(f"document.querySelector({button!r}).disabled")
        assert await p.run("return sessionStorage.length") == 0
        assert await p.complaints() == []


async def test_without_the_token_there_is_nothing_to_see_unless_it_is_allowed(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    async with page(browser, **{"admin.token_file": str(file)}) as p:
        await p.open(p.url)
        await p.settled("#token-form", "shows nothing without its token")
        assert await p.run("return document.querySelector('main').hidden")
        assert await p.run("return document.querySelector('#pods tr')") is None
        assert await p.complaints() == []
        await p.enter(TOKEN)
        await p.until(f"{LIVE} && document.querySelectorAll('#pods tr').length === 3")
        file.write_text("another-one")
        p.w.running.reload()
        await p.until("document.querySelector('#link').dataset.state === 'locked'")
        assert await p.run("return document.querySelector('main').hidden"), "the token counts no longer"


async def test_a_lost_connection_shows_and_ends(browser: Browser) -> None:
    async with page(browser) as p:
        await p.show()
        offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        drive = p._browser.driver.execute_cdp_cmd
        await asyncio.to_thread(drive, "Network.enable", {})
        await asyncio.to_thread(drive, "Network.emulateNetworkConditions", offline)
        await p.settled("#link", "no connection; shown: ")
        assert await p.run("return document.body.classList.contains('stale')")
        assert await p.run("return document.querySelectorAll('#pods tr').length") == 3, "what was known stays"
        await talk(p.w, "meanwhile", 2)
        await asyncio.to_thread(drive, "Network.emulateNetworkConditions", {**offline, "offline": False})
        await p.until(f"{LIVE} && {ROWS} === 2")
        assert not await p.run("return document.body.classList.contains('stale')")


async def test_a_policy_without_a_table_has_no_map(browser: Browser) -> None:
    async with page(browser, policy="pd") as p:
        await p.show()
        await p.settled("[data-fact=table]", "none")
        assert await p.run("return document.querySelector('#map-box').hidden")
        told = [await p.text(f"#{name}-sum") for name in ("slo", "queue", "drift")]
        assert told == ["no targets are set", "no limits are set", "no table to compare with"]
        assert await p.complaints() == []


async def test_targets_the_queue_and_drift_are_told(browser: Browser) -> None:
    settings = {"slo.standard.ttft_p99_ms": "0.001", "slo.min_samples": "1", "admission.max_tokens": "200000"}
    async with page(browser, prefill=1, decode=1, **settings) as p:
        policy = p.w.gateway.parts.policy
        assert isinstance(policy, MeasuredTable)
        assert policy.drift is not None
        await talk(p.w, "talk", 3)
        series = policy.drift.series["local", "ttft"]
        series.level, series.batches, series.drifting = math.log(1.8), 3, True
        policy.drift.drifting = True
        policy.drift.changes = [Change("local", "ttft", True, 1.8, time.monotonic())]
        await p.show()
        await p.settled("#slo", "✖ standard ttft_p99_ms")
        assert "weights moved to ttft 1.4142 : tpot 0.7071 (step 1 of 4): " in await p.text("#slo-sum")
        assert await p.text("#queue-sum") == "0 waiting, 0 of 200 k tokens in flight"
        assert "✖ the table is off" in await p.text("#drift-sum")
        assert "✖ local ttft×1.80" in await p.text("#drift")
        for words in ("ttft_p99_ms of class standard should be 0.001", "(local ttft ×1.80)"):
            assert words in await p.text("#alarms")
        assert await p.complaints() == []


# How it looks


async def test_it_fits_a_desktop_and_a_phone(browser: Browser) -> None:
    async with page(browser, prefill=2, decode=3) as p:
        await asyncio.gather(*(talk(p.w, f"talk-{number}", 5) for number in range(6)))
        await p.show()
        await p.until(f"{ROWS} === 30 && document.querySelector('#flow .lines path') !== null")
        await p.picture("ui-1440x900.png")
        for width, height in ((1440, 900), (390, 844), (360, 640)):
            await p.look(width, height)
            assert await p.run("return document.documentElement.scrollWidth") <= width, "nothing sticks out"
        await p.look(390, 844)
        await p.picture("ui-390x844.png")
        assert await p.complaints() == []


async def test_nothing_moves_by_itself_where_that_is_not_wanted(browser: Browser) -> None:
    shown = "return getComputedStyle(document.querySelector('#flow .moving')).animationName"
    async with page(browser) as p:
        await talk(p.w, "talk", 1)
        await p.show()
        await p.until("document.querySelector('#flow .moving') !== null")
        assert await p.run(shown) == "none"
        await p.media(motion="no-preference")
        assert await p.run(shown) == "along"
        await p.media()


@needs_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_no_serious_fault(browser: Browser, scheme: str) -> None:
    async with page(browser, prefill=2) as p:
        await asyncio.gather(*(talk(p.w, f"talk-{number}") for number in range(4)))
        await p.w.kill(p.w.decode[1])
        await p.show()
        await p.until("document.querySelector('[data-severity=warning]') !== null")
        for width, height in ((1440, 900), (390, 844)):
            await p.look(width, height, scheme)
            assert await p.faults() == []
        await p.run("document.querySelector('#decision-rows button').click()")
        await p.until("document.querySelector('#explain-body dl') !== null")
        assert await p.faults() == []


@needs_axe
async def test_axe_finds_none_in_what_the_page_asks_for(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    async with page(browser, **{"admin.token_file": str(file)}) as p:
        await p.open(p.url)
        await p.settled("#token-form", "shows nothing without its token")
        assert await p.faults() == []
        await p.enter(TOKEN)
        await p.until("document.querySelector('#pods button:enabled') !== null")
        await p.click("#pods button")
        assert await p.faults() == []


async def test_numbers_and_names_are_written_short(browser: Browser) -> None:
    script = """
    const [urls, done] = arguments;
    import("./ui/format.js").then((format) => {
      format.nameAll(urls);
      done([
        [0, 999, 1234, 99960, 1.5e6, null].map(format.count),
        [format.score(0.5), format.score(-0.25), format.score(null)],
        [format.rate(0.25), format.milliseconds(9.96), format.percent(0.021), format.age(7300)],
        urls.map(format.podName),
      ]);
    });
    """
    async with page(browser) as p:
        await p.show()
        hosts = ["http://p-0.pods.svc:8000", "http://d-0.pods.svc:8000", "http://[::1]:8000"]
        for urls, names in (
            (["http://10.0.0.1:8100", "http://10.0.0.1:8200"], [":8100", ":8200"]),
            (["http://10.0.0.1:8100", "http://10.0.0.2:8100"], ["10.0.0.1", "10.0.0.2"]),
            (hosts[:2], ["p-0", "d-0"]),
            (hosts, ["p-0.pods.svc", "d-0.pods.svc", "[::1]"]),
            (["https://one.example/"], ["one.example"]),
        ):
            found = await p.ask(script, urls)
            assert found == [
                ["0", "999", "1.2 k", "100 k", "1.5 M", "–"],
                ["+0.50", "−0.25", "–"],
                ["0.3", "10", "2.1 %", "2 h"],
                names,
            ]
