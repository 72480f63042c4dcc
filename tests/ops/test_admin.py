"""The admin API over HTTP, on a gateway with simulated pods."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.core.weights import Weights
from gateway.ops.admin.decisions import MAX_BEHIND, MAX_READERS
from gateway.ops.admin.openapi import document
from gateway.ops.admin.routes import ROUTES
from gateway.ops.config import SIMULATED_TABLE
from tests.net.world import CHAT, LONG, assistant, user
from tests.ops.admin_world import Admin, admin

SECRET = "sk-secret-of-a-client"


async def talk(a: Admin, turns: int = 2) -> list[str]:
    """A conversation; gives the request ids."""
    messages, ids = [user()], []
    for turn in range(turns):
        headers = {"X-Request-Id": f"req-{turn}", "Authorization": f"Bearer {SECRET}"}
        reply = await a.w.post(CHAT, {"model": "sim", "messages": messages, "max_tokens": 8}, headers)
        assert reply.status == 200
        messages += [assistant(reply.text), user(f"And then? {turn} {LONG}")]
        ids.append(f"req-{turn}")
    await a.w.record(turns)
    return ids


async def test_health_says_how_the_gateway_is() -> None:
    async with admin() as a:
        await talk(a)
        found = await a.get("/api/v1/health")
        assert (found["status"], found["policy"], found["workers"]) == ("ok", "local", 1)
        assert found["pods_up"] == {"prefill": 1, "decode": 2, "replica": 0}
        assert (found["in_flight"], found["conversations"]) == (0, 1)
        assert await a.get("/health") == {"status": "ok"}


async def test_a_pod_is_added_gets_traffic_and_is_removed_again() -> None:
    async with admin(decode=1) as a:
        spare = await a.w.add("decode")
        status, found = await a.call("POST", "/api/v1/pods", {"url": spare.url + "/", "role": "decode"})
        assert status == 201, found
        await a.w.watcher.until(lambda: a.w.watcher.pods.get(spare.url, False))
        shown = {pod["url"]: pod for pod in (await a.get("/api/v1/pods"))["pods"]}
        assert (shown[spare.url]["up"], shown[spare.url]["sources"]) == (True, ["admin"])
        assert a.w.gateway.parts.fleet.assignment == "1P_2D"
        assert (await a.call("DELETE", f"/api/v1/pods?url={spare.url}"))[0] == 200
        await a.w.running.roster.left(spare.url)
        assert spare.url not in {pod["url"] for pod in (await a.get("/api/v1/pods"))["pods"]}


async def test_a_pod_of_the_configuration_can_be_removed_too() -> None:
    async with admin(decode=2) as a:
        gone = a.w.decode[0].url
        assert (await a.call("DELETE", f"/api/v1/pods?url={gone}&drain=false"))[0] == 200
        await a.w.running.roster.left(gone)
        assert a.w.gateway.parts.fleet.assignment == "1P_1D"


async def test_a_pod_that_a_discovery_names_cannot_be_removed_by_hand() -> None:
    async with admin() as a:
        url = a.w.decode[0].url
        a.w.running.roster.add(url, a.w.gateway.parts.fleet.get(url).role, source="dns")  # type: ignore[union-attr]
        status, found = await a.call("DELETE", f"/api/v1/pods?url={url}")
        assert status == 409
        assert "named by dns" in found["error"]["message"]


async def test_a_drained_pod_gets_nothing_new_until_it_is_undrained() -> None:
    async with admin(decode=2) as a:
        drained, other = a.w.decode[0].url, a.w.decode[1].url
        assert (await a.call("POST", "/api/v1/pods/drain", {"url": drained}))[0] == 200
        for _ in range(4):
            await a.w.chat([user()])
        assert {record.answering for record in a.w.watcher.records} == {other}
        shown = {pod["url"]: pod["draining"] for pod in (await a.get("/api/v1/pods"))["pods"]}
        assert (shown[drained], shown[other]) == (True, False)
        assert (await a.call("POST", "/api/v1/pods/undrain", {"url": drained}))[0] == 200
        assert a.w.gateway.parts.fleet.assignment == "1P_2D"


REFUSED = [
    ("POST", "/api/v1/pods", {"url": "ftp://x", "role": "decode"}, 400, "Must be like http://host:8000 - at `$.url`"),
    ("POST", "/api/v1/pods", {"url": "http://x:1", "role": "king"}, 400, "$.role"),
    ("POST", "/api/v1/pods", {"url": "http://x:1", "role": "decode", "odd": 1}, 400, "odd"),
    ("POST", "/api/v1/pods", b"{", 400, "not JSON"),
    ("POST", "/api/v1/pods/drain", {"url": "http://x:1"}, 404, "No pod has that URL"),
    ("DELETE", "/api/v1/pods?url=http://x:1", None, 404, "No pod has that URL"),
    ("DELETE", "/api/v1/pods", None, 400, "url"),
    ("DELETE", "/api/v1/pods?url=a&url=b", None, 400, "more than once"),
    ("PUT", "/api/v1/weights", {"w_ttft": 0, "w_tpot": 0}, 400, "not both be 0"),
    ("PUT", "/api/v1/weights", {"w_ttft": -1, "w_tpot": 0}, 400, "w_ttft"),
    ("PUT", "/api/v1/canary", {"percent": 101}, 400, "percent"),
    ("PUT", "/api/v1/canary", {"state": "stopped"}, 400, "state"),
    ("GET", "/api/v1/table/heatmap?w_ttft=null", None, 400, "leave it out"),
    ("GET", "/api/v1/conversations/xyz", None, 404, "No conversation"),
    ("GET", "/api/v1/decisions/none", None, 404, "remembered"),
    ("GET", "/api/v1/decisions?limit=0", None, 400, "limit"),
    ("GET", "/api/v1/table", None, 409, "Policy local uses no table"),
    ("GET", "/api/v1/nope", None, 404, "Not Found"),
    ("PATCH", "/api/v1/pods", None, 405, "Not Allowed"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "word"), REFUSED, ids=lambda value: str(value)[:30])
async def test_what_is_refused_is_said_in_one_shape(method: str, path: str, body: Any, status: int, word: str) -> None:
    async with admin() as a:
        found_status, found = await a.call(method, path, body)
        assert found_status == status
        assert list(found) == ["error"]
        assert word in found["error"]["message"]


async def test_a_body_that_is_not_declared_as_json_is_refused() -> None:
    async with admin() as a:
        headers = {"Content-Type": "text/plain"}
        assert (await a.call("PUT", "/api/v1/canary", b'{"percent": 5}', headers))[0] == 415
        assert a.w.gateway.parts.canary.status.percent == 100


async def test_weights_count_from_the_next_request_on() -> None:
    async with admin(policy="ppd") as a:
        assert await a.get("/api/v1/weights") == {"w_ttft": 1.0, "w_tpot": 1.0}
        assert (await a.call("PUT", "/api/v1/weights", {"w_ttft": 2, "w_tpot": 0.5}))[0] == 200
        assert a.w.gateway.parts.settings.weights.default == Weights(2, 0.5)
        assert (await a.get("/api/v1/table/heatmap"))["w_ttft"] == 2.0


async def test_the_table_is_shown_drawn_with_the_traffic_and_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "table"
    shutil.copytree(SIMULATED_TABLE, folder)
    async with admin(policy="ppd", table=str(folder)) as a:
        await talk(a, 3)
        shown = await a.get("/api/v1/table")
        assert (shown["simulated"], shown["directory"]) == (True, str(folder))
        drawn = await a.get("/api/v1/table/heatmap?w_ttft=1&w_tpot=0&output_tokens=64&rate=1")
        shape = (len(drawn["context_tokens"]), len(drawn["new_tokens"]))
        for name in ("s", "routes", "counts"):
            assert (len(drawn[name]), {len(row) for row in drawn[name]}) == (shape[0], {shape[1]})
        assert sum(map(sum, drawn["counts"])) == 2, "turns 2 and 3"
        heavy = await a.get("/api/v1/table/heatmap?w_ttft=0&w_tpot=1&output_tokens=64&rate=1")
        assert heavy["s"] != drawn["s"]
        assert (await a.call("POST", "/api/v1/table/reload"))[0] == 200
        (folder / "manifest.json").write_text("{}")
        status, found = await a.call("POST", "/api/v1/table/reload")
        assert (status, found["error"]["type"]) == (422, "refused")
        assert (await a.get("/api/v1/table"))["description"] == shown["description"]


async def test_the_canary_is_set_turned_off_and_on() -> None:
    async with admin() as a:
        status, found = await a.call("PUT", "/api/v1/canary", {"percent": 20})
        assert (status, found["state"], found["percent"]) == (200, "on", 20.0)
        assert (await a.call("PUT", "/api/v1/canary", {"state": "off"}))[1]["state"] == "off"
        assert not a.w.gateway.parts.canary.takes(b"\0" * 16)
        found = (await a.call("PUT", "/api/v1/canary", {"state": "on"}))[1]
        assert (found["state"], found["percent"], found["why"]) == ("on", 20.0, "turned on by an operator")
        assert (await a.call("PUT", "/api/v1/canary", {}))[1]["why"] == found["why"], "nothing said, nothing changed"
        found = (await a.call("PUT", "/api/v1/canary", {"percent": 30, "state": "off"}))[1]
        assert (found["state"], found["percent"]) == ("off", 30.0)
        await a.call("PUT", "/api/v1/canary", {"percent": 30})
        await a.w.running.administration.canary.look()
        tests = (await a.get("/api/v1/canary"))["tests"]
        assert [test["name"] for test in tests] == ["failures", "ttft", "tpot"]


async def test_a_conversation_is_found_by_the_id_of_the_log_and_shows_no_text() -> None:
    async with admin() as a:
        await talk(a, 2)
        record = await a.w.record(2)
        found = await a.get(f"/api/v1/conversations/{record.conversation}")
        assert (found["turn"], found["decode"], found["last_route"]) == (2, record.answering, "local")
        assert found["resident_tokens"][record.answering] > 0
        assert LONG[:20] not in str(found)


async def test_decisions_are_remembered_newest_first_and_found_by_request_id() -> None:
    async with admin() as a:
        ids = await talk(a, 3)
        found = (await a.get("/api/v1/decisions?limit=2"))["decisions"]
        assert [each["id"] for each in found] == [ids[2], ids[1]]
        [one] = (await a.get(f"/api/v1/decisions/{ids[1]}"))["decisions"]
        assert (one["route"], one["turn"], one["arm"]) == ("local", 2, "canary")
        assert "tokens are on D" in one["reason"]


async def test_nothing_that_a_client_said_is_in_any_answer() -> None:
    async with admin(policy="ppd") as a:
        await talk(a, 3)
        conversation = (await a.w.record(1)).conversation
        for route in ROUTES:
            if route.method == "GET":
                path = route.path.replace("{id}", conversation or "").replace("{request_id}", "req-1")
                text = str(await a.get(path))
                assert SECRET not in text
                assert LONG[:20] not in text


async def test_the_flow_names_the_pairs_and_what_went_between_them() -> None:
    async with admin(decode=1) as a:
        await talk(a, 2)
        found = await a.get("/api/v1/flow")
        [pair] = found["pairs"]
        assert (pair["prefill"], pair["decode"]) == (a.w.prefill[0].url, a.w.decode[0].url)
        assert pair["tokens_per_s"] > 0
        assert {pod["url"] for pod in found["pods"]} == {a.w.prefill[0].url, a.w.decode[0].url}


async def test_the_settings_are_shown_without_secrets() -> None:
    hashed = "0123456789abcdef" * 4
    async with admin(
        state="redis://user:hunter2@127.0.0.1:1/0", tenant_weights=[f"{hashed}:ttft=2"], state_timeout_s="0.001"
    ) as a:
        found = (await a.get("/api/v1/config"))["settings"]
        assert found["state"] == "redis://127.0.0.1:1/0"
        assert found["policy"] == "local"
        assert hashed not in str(found)
        assert "hunter2" not in str(found)


async def test_metrics_and_the_pages_for_people_are_there_and_the_clients_port_has_the_metrics_only() -> None:
    async with admin() as a:
        assert (await a.w.get("/admin/pods")).status == 404
        assert (await a.w.get("/admin/residency")).status == 404
        assert (await a.w.get("/metrics")).status == 200
        async with a.w.session.get(a.url + "/metrics") as answer:
            assert b"ppd_pod_up" in await answer.read()
        assert len((await a.get("/admin/pods"))["pods"]) == 3
        assert len((await a.get("/admin/residency"))["pods"]) == 3


# Who may call


async def test_with_a_token_nothing_but_health_is_open(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("right-token\n")
    file.chmod(0o600)
    async with admin(**{"admin.token_file": str(file)}) as a:
        assert (await a.get("/api/v1/health"))["status"] == "ok"
        paths = [(route.method, route.path) for route in ROUTES] + [("GET", "/metrics"), ("GET", "/openapi.json")]
        for method, path in [*paths, ("GET", "/admin/pods"), ("GET", "/nope")]:
            for wrong in ("", "Bearer wrong", "Basic right-token", "Bearer right-token2"):
                status, found = await a.call(method, path, headers={"Authorization": wrong})
                assert (status, found["error"]["type"]) == (401, "unauthorized")
        a.token = None
        assert (await a.call("GET", "/health"))[0] == 200


async def test_a_new_token_counts_once_its_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    async with admin(**{"admin.token_file": str(file)}) as a:
        file.write_text("second")
        a.w.running.reload()
        async with asyncio.timeout(30):
            while (await a.call("GET", "/api/v1/health"))[0] != 401:  # noqa: ASYNC110
                await asyncio.sleep(0)
        a.token = "second"
        assert (await a.call("GET", "/api/v1/health"))[0] == 200


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Host": "evil.example:80"}, {"Origin": "http://evil.example"}]
)
async def test_without_a_token_a_foreign_page_is_not_answered(headers: dict[str, str]) -> None:
    async with admin() as a:
        status, found = await a.call("POST", "/api/v1/table/reload", headers=headers)
        assert (status, found["error"]["type"]) == (403, "forbidden")


async def test_without_admin_port_there_is_no_admin_api() -> None:
    async with admin(**{"admin.port": None}) as a:
        assert a.url == ""
        assert a.w.running.administration.backend is None
        assert (await a.w.get("/admin/pods")).status == 200, "then the client's port has the pages, for loopback"


# Streams


async def test_decisions_are_streamed_as_they_come() -> None:
    async with admin() as a:
        async with a.w.session.get(a.url + "/api/v1/decisions?follow=1") as answer:
            assert answer.content_type == "text/event-stream"
            await answer.content.readuntil(b": decisions\n\n")
            await talk(a, 1)
            event = await answer.content.readuntil(b"\n\n")
            assert event.startswith(b"data: {")
            assert msgspec.json.decode(event[6:])["id"] == "req-0"
            await a.w.running.administration.stop()
            assert await answer.content.read() == b"", "the stream ends with the server"


async def test_readers_are_bounded_and_a_slow_one_is_dropped() -> None:
    async with admin() as a:
        decisions = a.w.running.administration.backend.control.decisions  # type: ignore[union-attr]
        readers = [decisions.follow() for _ in range(MAX_READERS)]
        assert (await a.call("GET", "/api/v1/decisions?follow=1"))[0] == 429
        slow = readers[0]
        assert slow is not None
        for _ in range(MAX_BEHIND + 1):
            slow.put(b"{}")
        assert await slow.next() is None
        for reader in readers:
            assert reader is not None
            decisions.leave(reader)


async def test_an_error_of_the_gateways_own_is_logged_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    async with admin() as a:

        def broken(_: int) -> None:
            raise RuntimeError("what a client said")

        a.w.running.administration.backend.control.decisions.last = broken  # type: ignore[union-attr, assignment, method-assign]
        with caplog.at_level(logging.ERROR):
            status, found = await a.call("GET", "/api/v1/decisions")
        assert (status, found["error"]["message"]) == (500, "Internal error.")
        assert "bug in the admin API: RuntimeError at" in caplog.text
        assert "client said" not in caplog.text


# The document


def test_the_document_has_every_route_and_no_other() -> None:
    found = document(with_token=True)
    listed = {(method.upper(), path) for path, item in found["paths"].items() for method in item}
    assert listed == {(route.method, route.path) for route in ROUTES}
    assert found["security"] == [{"token": []}]
    text = msgspec.json.encode(found)
    assert text == msgspec.json.encode(document(with_token=True)), "the same every time"
