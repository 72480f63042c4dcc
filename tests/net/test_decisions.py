"""The measured table at work: routes, headers, weights, exchange while running."""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.net.world import CHAT, LONG, Reply, World, assistant, user, world
from tests.tables import arm, write_set

FAST_LOCAL = {"1P_2D": (arm(100, 10), arm(20, 10.7))}
FAST_PD = {"1P_2D": (arm(20, 10), arm(100, 10.7))}


def table_flags(directory: Path, **more: Any) -> dict[str, Any]:
    return {"policy": "ppd", "table": str(directory), "expose_decisions": True, **more}


async def second_turn(w: World, headers: dict[str, str] | None = None, topic: str = "a") -> Reply:
    """Play two turns; the reply of the second."""
    first = await w.post(CHAT, {"model": "sim", "messages": [user(topic + LONG)], "max_tokens": 8}, headers)
    messages = [user(topic + LONG), assistant(first.text), user("and then?")]
    return await w.post(CHAT, {"model": "sim", "messages": messages, "max_tokens": 8}, headers)


async def test_the_table_decides_and_the_client_is_told_when_that_is_enabled(tmp_path: Path) -> None:
    async with world(**table_flags(write_set(tmp_path / "t", FAST_LOCAL))) as w:
        reply = await second_turn(w)
        assert reply.headers["x-ppd-route"] == "local"
        assert reply.headers["x-ppd-reason"].startswith("local: S=+0.73 (ttft -80 %, tpot +7 %) cell ctx=")
        assert reply.headers["x-ppd-reason"].endswith("pi=1P_2D")
        assert (await w.record(2)).route == "local"


async def test_the_client_is_told_nothing_by_default(tmp_path: Path) -> None:
    async with world(**table_flags(write_set(tmp_path / "t", FAST_PD), expose_decisions=False)) as w:
        reply = await second_turn(w)
        assert "x-ppd-route" not in reply.headers
        assert (await w.record(2)).route == "pd"


async def test_a_clients_weights_count_only_when_the_operator_allows_it(tmp_path: Path) -> None:
    directory = write_set(tmp_path / "t", FAST_LOCAL)
    wish = {"X-PPD-Weights": "ttft=1,tpot=20"}
    for allowed, route in ((False, "local"), (True, "pd")):
        async with world(**table_flags(directory, allow_request_weights=allowed)) as w:
            assert (await second_turn(w, wish)).headers["x-ppd-route"] == route
            pods = [*w.prefill, *w.decode]
            assert all("x-ppd-weights" not in request.headers for pod in pods for request in pod.requests)


async def test_weights_that_mean_nothing_are_a_400_where_they_count(tmp_path: Path) -> None:
    async with world(**table_flags(write_set(tmp_path / "t", FAST_LOCAL), allow_request_weights=True)) as w:
        reply = await w.post(CHAT, {"model": "sim", "messages": [user()]}, {"X-PPD-Weights": "tpot=-1"})
        assert reply.status == 400
        assert reply.json["error"]["param"] == "X-PPD-Weights"
        assert len(w.gateway.parts.store) == 0


async def test_a_tenants_weights_are_its_own(tmp_path: Path) -> None:
    key = hashlib.sha256(b"key-of-b").hexdigest()
    flags = table_flags(write_set(tmp_path / "t", FAST_LOCAL), tenant_weights=[f"{key}:ttft=1,tpot=20"])
    async with world(**flags) as w:
        assert (await second_turn(w, {"Authorization": "Bearer key-of-a"})).headers["x-ppd-route"] == "local"
        assert (await second_turn(w, {"Authorization": "Bearer key-of-b"})).headers["x-ppd-route"] == "pd"


async def test_a_full_decode_pod_takes_no_append_prefill(tmp_path: Path) -> None:
    async with world(**table_flags(write_set(tmp_path / "t", FAST_LOCAL), decode_max_in_flight=3)) as w:
        for pod in w.gateway.parts.fleet:
            pod.in_flight = 3
        reply = await second_turn(w)
        assert reply.headers["x-ppd-route"] == "pd"
        assert "has 3 requests in flight" in reply.headers["x-ppd-reason"]


async def test_the_assignment_is_of_the_pods_that_are_up_now(tmp_path: Path) -> None:
    tables = {**FAST_LOCAL, "1P_1D": (arm(20, 10), arm(100, 10))}
    async with world(**table_flags(write_set(tmp_path / "t", tables))) as w:
        assert "pi=1P_2D" in (await second_turn(w)).headers["x-ppd-reason"]
        await w.kill(w.decode[0])
        await w.watcher.until(lambda: not w.watcher.pods[w.decode[0].url])
        reply = await second_turn(w, topic="b")
        assert "pi=1P_1D" in reply.headers["x-ppd-reason"]
        assert reply.headers["x-ppd-route"] == "pd"


async def until_exchanged(w: World, result: str, count: int) -> None:
    """Order a look at the directory and wait until the metric says what came of it: so often, or once more where the
    keeper had just looked of its own accord."""
    assert w.keeper is not None
    w.keeper.reload()
    wanted = rf'ppd_table_changes_total\{{result="{result}"\}} ({count}|{count + 1})\.0'
    async with asyncio.timeout(30):
        while not re.search(wanted, (await w.get("/metrics")).body.decode()):  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_a_new_set_is_taken_into_use_without_dropping_a_request(tmp_path: Path) -> None:
    directory = write_set(tmp_path / "t", FAST_LOCAL)
    async with world(**table_flags(directory)) as w:
        assert (await second_turn(w)).headers["x-ppd-route"] == "local"
        traffic = asyncio.gather(*(second_turn(w, topic=str(number)) for number in range(8)))
        write_set(directory, FAST_PD)
        await until_exchanged(w, "taken", 2)
        assert {reply.status for reply in await traffic} == {200}
        assert (await second_turn(w, topic="new")).headers["x-ppd-route"] == "pd"


@pytest.mark.parametrize("harm", ["truncate", "foreign", "gone"])
async def test_a_bad_set_is_refused_and_the_old_one_stays(
    tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    directory = write_set(tmp_path / "t", FAST_LOCAL)
    async with world(**table_flags(directory)) as w:
        if harm == "truncate":
            path = next(directory.glob("*.npy"))
            fresh = tmp_path / "cut.npy"
            fresh.write_bytes(path.read_bytes()[:-4])
            fresh.rename(path)
        elif harm == "foreign":
            fresh = tmp_path / "foreign.json"
            fresh.write_text('{"format": "something else"}')
            fresh.rename(directory / "manifest.json")
        else:
            shutil.rmtree(directory)
        await until_exchanged(w, "refused", 1)
        assert (await second_turn(w)).headers["x-ppd-route"] == "local"
        refusals = [record for record in caplog.records if "refused" in record.getMessage()]
        assert len(refusals) in (1, 2)
        assert all(str(directory) in refusal.getMessage() for refusal in refusals)


async def test_metrics_tell_which_table_is_in_use(tmp_path: Path) -> None:
    async with world(**table_flags(write_set(tmp_path / "t", FAST_LOCAL, simulated=True))) as w:
        await second_turn(w)
        text = (await w.get("/metrics")).body.decode()
        assert "ppd_table_simulated 1.0" in text
        assert 'ppd_decisions_total{arm="canary",reason="score",route="local",turn="2+"} 1.0' in text
        assert "ppd_table_created_timestamp_seconds 1" in text


@pytest.mark.parametrize(("model", "said"), [("sim", 0), ("other", 1)])
async def test_a_table_of_another_model_is_used_and_said_once(
    tmp_path: Path, model: str, said: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(**table_flags(write_set(tmp_path / "t", FAST_LOCAL, model=model))) as w:
        assert (await second_turn(w)).headers["x-ppd-route"] == "local"
        lines = [r.getMessage() for r in caplog.records if "was measured on model other" in r.getMessage()]
        assert len(lines) == said
