"""What the gateway says to requests that are wrong, and what it says of itself."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest

from gateway.net.records import Outcome
from tests.net.world import CHAT, COMPLETIONS, LONG, assistant, user, world

BAD_BODIES = {
    "empty": b"",
    "cut": b'{"model": "sim", "messages": [',
    "list": b"[1, 2]",
    "string": b'"hello"',
    "not utf-8": b'{"model": "\xff\xfe"}',
    "nan": b'{"temperature": NaN}',
    "trailing": b'{"model": "sim"} secret-word',
    "deep": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


def is_openai_error(body: bytes, code: int) -> bool:
    error = msgspec.json.decode(body)["error"]
    return set(error) == {"message", "type", "param", "code"} and error["code"] == code


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES.keys())
async def test_malformed_json_is_a_400_and_the_connection_stays_usable(body: bytes) -> None:
    async with world() as w:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(w.url.rpartition(":")[2]))
        for _ in range(2):
            status, answer = await raw_request(reader, writer, CHAT, body)
            assert status == 400
            assert is_openai_error(answer, 400)
            assert b"secret-word" not in answer
        status, _ = await raw_request(reader, writer, CHAT, msgspec.json.encode(small()))
        assert status == 200
        writer.close()
        await writer.wait_closed()
        assert len(w.prefill[0].requests) == 1


async def raw_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: bytes, method: str = "POST"
) -> tuple[int, bytes]:
    """One request on a connection that stays open."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    lines = answer.decode().lower().split("\r\n")
    length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
    return int(lines[0].split()[1]), await reader.readexactly(length)


def small() -> dict[str, object]:
    return {"model": "sim", "messages": [user()], "max_tokens": 2}


@pytest.mark.parametrize("chunked", [False, True], ids=["declared", "chunked"])
async def test_a_body_over_the_limit_is_a_413_and_reaches_no_pod(chunked: bool) -> None:
    async with world(max_body_bytes=1000) as w:
        body = msgspec.json.encode({"model": "sim", "messages": [user("x" * 2000)]})

        async def pieces():  # type: ignore[no-untyped-def]
            yield body

        headers = {"Content-Type": "application/json"}
        for _ in range(2):
            data = pieces() if chunked else body
            async with w.session.post(w.url + CHAT, data=data, headers=headers) as response:
                assert response.status == 413
                assert is_openai_error(await response.read(), 413)
        assert (await w.post(CHAT, {"model": "sim", "messages": [user("hi")], "max_tokens": 2})).status == 200
        assert sum(len(pod.requests) for pod in w.prefill) == 1


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_wrong_content_type_is_a_415(content_type: str) -> None:
    async with world() as w:
        reply = await w.post(CHAT, small(), {"Content-Type": content_type})
        assert reply.status == 415
        assert is_openai_error(reply.body, 415)


async def test_json_with_a_charset_is_json() -> None:
    async with world() as w:
        assert (await w.post(CHAT, small(), {"Content-Type": "Application/JSON; charset=utf-8"})).status == 200


@pytest.mark.parametrize(
    ("method", "path"), [("GET", CHAT), ("PUT", COMPLETIONS), ("POST", "/v1/models"), ("DELETE", "/health")]
)
async def test_a_wrong_method_is_a_405_that_says_which_are_right(method: str, path: str) -> None:
    async with world() as w:
        reply = await w.get(path, method)
        assert reply.status == 405
        assert is_openai_error(reply.body, 405)
        assert reply.headers["allow"] in ("POST", "GET, HEAD")


async def test_an_unknown_path_is_a_404_and_is_not_a_label_of_its_own() -> None:
    async with world() as w:
        reply = await w.get("/v1/secret-path")
        assert reply.status == 404
        assert is_openai_error(reply.body, 404)
        assert (await w.record(1)).path == "other"
        assert b"secret-path" not in (await w.get("/metrics")).body


@pytest.mark.parametrize("sent", ["abc-1.2:3", None, "", "bad id", "x" * 200, "ü"])
async def test_every_answer_carries_a_request_id(sent: str | None) -> None:
    async with world() as w:
        headers = {} if sent is None else {"X-Request-Id": sent}
        for path, body in ((CHAT, small()), (CHAT, b"{"), ("/nowhere", b"{}")):
            reply = await w.post(path, body, headers)
            got = reply.headers["x-request-id"]
            assert got == sent if sent == "abc-1.2:3" else len(got) == 32


async def test_models_are_the_union_over_the_pods() -> None:
    async with world(prefill=0, decode=1) as w:
        other = await w.add("replica", model="other")
        w.gateway.health.models[other.url] = w.gateway.health.models[w.decode[0].url]
        reply = await w.get("/v1/models")
        assert [entry["id"] for entry in reply.json["data"]] == ["sim"]
        listed = (await w.session.get(other.url + "/v1/models")).read()
        w.gateway.health.models[other.url] = msgspec.json.decode(
            await listed, type=type(w.gateway.health.models[other.url])
        )
        reply = await w.get("/v1/models")
        assert [entry["id"] for entry in reply.json["data"]] == ["sim", "other"]
        assert "max_model_len" in reply.json["data"][0]


@pytest.mark.parametrize(
    ("path", "body"),
    [("/tokenize", {"model": "sim", "prompt": "hello world"}), ("/detokenize", {"model": "sim", "tokens": [1, 2, 3]})],
)
async def test_tokenize_and_detokenize_are_passed_through(path: str, body: dict[str, object]) -> None:
    async with world() as w:
        direct = await w.post(path, body, url=w.decode[0].url)
        reply = await w.post(path, body)
        assert (reply.status, reply.body) == (200, direct.body)


async def test_version_is_passed_through_and_survives_a_dead_pod() -> None:
    async with world(**{"health.interval_s": 60}) as w:
        await w.kill(w.prefill[0])
        reply = await w.get("/version")
        assert reply.status == 200
        assert "version" in reply.json


async def test_ready_needs_a_decode_pod_and_health_does_not() -> None:
    async with world(prefill=1, decode=1) as w:
        assert (await w.get("/ready")).status == 200
        await w.kill(w.decode[0])
        await w.watcher.until(lambda: not w.watcher.pods[w.decode[0].url])
        assert (await w.get("/ready")).status == 503
        assert (await w.get("/health")).status == 200
        await w.restart(w.decode[0])
        await w.all_up()
        assert (await w.get("/ready")).status == 200


async def test_a_replica_alone_is_enough_to_be_ready() -> None:
    async with world(prefill=1, decode=1, replica=1) as w:
        await w.kill(w.decode[0])
        await w.watcher.until(lambda: not w.watcher.pods[w.decode[0].url])
        assert (await w.get("/ready")).status == 200
        assert (await w.chat([user()])).status == 200


async def test_a_draining_gateway_is_not_ready_and_finishes_what_it_has() -> None:
    async with world(prefill=0, decode=1) as w:
        w.decode[0].fault("hold")
        request = asyncio.create_task(w.chat([user()]))
        while not w.decode[0].requests:  # noqa: ASYNC110
            await asyncio.sleep(0)
        drained = asyncio.create_task(w.gateway.drain(10))
        await asyncio.sleep(0)
        assert w.gateway.draining
        assert not drained.done()
        w.decode[0].clear_faults()
        assert (await request).status == 200
        assert await drained


async def test_only_requests_that_still_run_keep_a_gateway_from_being_drained() -> None:
    async with world(prefill=0, decode=1) as w:
        assert await w.gateway.drain(10)
        w.decode[0].fault("hold")
        request = asyncio.create_task(w.chat([user()]))
        while not w.decode[0].requests:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not await w.gateway.drain(0.01)
        w.decode[0].clear_faults()
        assert (await request).status == 200
        assert await w.gateway.drain(10)


async def test_head_of_health_has_no_body() -> None:
    async with world() as w:
        reply = await w.get("/health", "HEAD")
        assert (reply.status, reply.body) == (200, b"")


async def test_metrics_count_requests_tokens_and_faults() -> None:
    async with world(prefill=1, decode=1) as w:
        reply = await w.chat([user()])
        await w.chat([user(), assistant(reply.text), user("more " + LONG)])
        w.prefill[0].fault("refuse_5xx")
        await w.chat([user("something else " + LONG)])
        text = (await w.get("/metrics")).body.decode()
        assert (
            "ppd_requests_total"
            '{arm="canary",outcome="ok",path="/v1/chat/completions",route="pd",status="200",turn="1"} 1.0' in text
        )
        assert 'route="local",status="200",turn="2+"} 1.0' in text
        assert f'ppd_faults_total{{kind="prefill_status",pod="{w.prefill[0].url}"}} 1.0' in text
        assert 'ppd_tokens_total{arm="canary",kind="output",route="local",turn="2+"} 8.0' in text
        assert "ppd_conversations 2.0" in text


async def test_no_text_of_a_message_and_no_key_reaches_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with world(prefill=1, decode=1) as w:
        headers = {"Authorization": "Bearer key-secret-1"}
        body = {**small(), "messages": [user("text-secret-2 " + LONG)], "cache_salt": "salt-secret-3"}
        await w.post(CHAT, body, headers)
        await w.post(CHAT, b'{"messages": "text-secret-4', headers)
        w.prefill[0].fault("refuse_5xx", times=-1)
        w.decode[0].fault("finish_error", times=-1)
        await w.post(CHAT, {**body, "stream": True}, headers)
        metrics = (await w.get("/metrics")).body.decode()
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("ppd_gateway")]
    assert any("route=pd" in line for line in lines)
    assert "secret" not in "\n".join(lines) + metrics


async def test_a_bug_in_the_gateway_is_a_500_and_a_fault_without_the_text(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as w:

        class Broken:
            name = "broken"

            def choose(self, view: object) -> None:
                raise KeyError("text-secret")

        w.gateway.parts.policy = Broken()  # type: ignore[assignment]
        first = await w.chat([user()])
        reply = await w.chat([user(), assistant(first.text), user("more " + LONG)])
        assert reply.status == 500
        assert is_openai_error(reply.body, 500)
        assert "bug" in w.watcher.fault_kinds
        assert "text-secret" not in caplog.text + reply.body.decode()
        assert (await w.record(2)).outcome is Outcome.FAILED
        assert (await w.chat([user()])).status == 200


async def test_large_bodies_pass_in_both_directions() -> None:
    async with world(pod={"max_model_len": 4_000_000, "num_blocks": 100_000, "max_num_batched_tokens": 1_000_000}) as w:
        reply = await w.chat([user("word " * 400_000)], max_tokens=2)
        assert reply.status == 200, reply.body[:300]
        assert reply.json["usage"]["prompt_tokens"] > 300_000
