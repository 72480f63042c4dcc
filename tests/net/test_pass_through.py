"""Requests that any healthy pod may answer go through as they came; those of the operator do not."""

from __future__ import annotations

import aiohttp
import msgspec
import pytest

from gateway.wire.paths import PASS_THROUGH, clean_body, model_of_form, response_of, without_offers
from tests.net.world import World, user, world

EMBEDDINGS, AUDIO = "/v1/embeddings", "/v1/audio/transcriptions"
EXTRAS = {"extras": True}


async def upload(w: World, **fields: str) -> tuple[int, bytes, str]:
    form = aiohttp.FormData(fields, default_to_multipart=True)
    form.add_field("file", b"\0\1RIFF" * 500, filename="a.wav", content_type="audio/wav")
    async with w.session.post(w.url + AUDIO, data=form) as response:
        return response.status, await response.read(), response.headers["Content-Type"]


async def test_method_query_and_body_are_kept() -> None:
    async with world(prefill=1, decode=1, pod=EXTRAS) as w:
        body = b'{ "model":"sim",  "input" : "one two three" }'
        reply = await w.post(f"{EMBEDDINGS}?a=1&b=%20", body)
        assert reply.status == 200
        assert reply.json["object"] == "list"
        seen = w.decode[0].requests[-1]
        assert (seen.raw, seen.path) == (body, f"{EMBEDDINGS}?a=1&b=%20")
        record = await w.record(1)
        assert (record.path, record.outcome, record.answering) == (EMBEDDINGS, "ok", w.decode[0].url)


async def test_uploads_keep_their_content_type_and_may_be_streamed() -> None:
    async with world(prefill=1, decode=1, pod=EXTRAS) as w:
        status, body, kind = await upload(w, model="sim")
        assert (status, kind.partition(";")[0]) == (200, "application/json")
        seen = w.decode[0].requests[-1]
        assert seen.raw.startswith(b"--" + seen.headers["content-type"].partition("boundary=")[2].encode())
        assert msgspec.json.decode(body)["text"] == f"heard {len(seen.raw)} bytes"
        status, body, kind = await upload(w, model="sim", stream="true")
        assert kind.startswith("text/event-stream")
        assert body.count(b"data: ") == 4
        assert body.endswith(b"data: [DONE]\n\n")


async def test_work_goes_to_prefill_pods_only_when_nobody_else_is_up() -> None:
    async with world(prefill=1, decode=2, pod=EXTRAS) as w:
        for _ in range(4):
            await w.post(EMBEDDINGS, {"model": "sim", "input": "x"})
        assert not w.prefill[0].requests
        for pod in w.decode:
            await w.kill(pod)
        assert (await w.post(EMBEDDINGS, {"model": "sim", "input": "x"})).status == 200
        assert len(w.prefill[0].requests) == 1


async def test_a_pod_that_lacks_the_endpoint_says_so_itself() -> None:
    async with world(prefill=0, decode=1) as w:
        reply = await w.post("/v1/rerank", {"model": "sim"})
        assert (reply.status, reply.json) == (404, {"detail": "Not Found"})


async def test_no_pod_is_said_so() -> None:
    async with world(prefill=0, decode=1) as w:
        await w.kill(w.decode[0])
        reply = await w.post(EMBEDDINGS, {"model": "sim", "input": "x"})
        assert reply.status in (502, 503)


@pytest.mark.parametrize(
    "path",
    [
        "/sleep", "/wake_up", "/reset_prefix_cache", "/collective_rpc", "/update_weights", "/scale_elastic_ep",
        "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/start_profile", "/stop_profile",
        "/inference/v1/generate", "/inference/v1/abort_requests", "/abort_requests", "/pause", "/resume",
        "/server_info", "/is_sleeping", "/is_paused", "/load", "/kv_event_sources", "/fault_tolerance/apply",
        "/invocations", "/v1/embeddings/", "/openapi.json", "/docs", "/v1/responses/a/b", "/v1/responses/",
    ],
)  # fmt: skip
async def test_what_belongs_to_the_operator_is_a_404(path: str) -> None:
    async with world(prefill=0, decode=1, pod=EXTRAS) as w:
        for method in ("GET", "POST", "PUT", "DELETE"):
            reply = await w.get(path, method)
            assert reply.status == 404, (method, reply.body)
        assert not w.decode[0].requests
        assert {record.path for record in w.watcher.records} == {"other"}


async def test_another_method_is_a_405() -> None:
    async with world(prefill=0, decode=1) as w:
        reply = await w.get(EMBEDDINGS)
        assert (reply.status, reply.headers["allow"]) == (405, "POST")


def test_nobody_names_blocks_or_sessions_through_the_back_door() -> None:
    body = b'{"input": "x","kv\\u005ftransfer_params":{"remote_block_ids":[1]},"session_id":"yours","b":1.0}'
    assert clean_body(body)[0] == b'{"input":"x","b":1.0}'
    assert clean_body(b' {"input": "x"}')[0] == b' {"input": "x"}'
    assert clean_body(b"oops") == (b"oops", {})


def test_what_a_pod_offers_leaves_no_answer() -> None:
    assert without_offers(b'[{"a":1,"kv_transfer_params":{"x":[1]}}]') == b'[{"a":1,"kv_transfer_params":null}]'
    assert without_offers(b'{"a": 1}') == b'{"a": 1}'


def test_the_model_of_a_form_is_found() -> None:
    part = b'--b\r\nContent-Disposition: form-data; name="model"\r\n'
    assert model_of_form(part + b"\r\nwhisper\r\n--b--") == "whisper"
    assert model_of_form(part + b"Content-Type: text/plain\r\n\r\nwhisper\r\n--b--") == "whisper"
    assert model_of_form(b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nmodel\r\n--b--') is None


def test_paths_of_a_response() -> None:
    assert response_of("/v1/responses/resp_1") == ("/v1/responses/{id}", "resp_1")
    assert response_of("/v1/responses/resp_1/cancel") == ("/v1/responses/{id}/cancel", "resp_1")
    assert response_of("/v1/responses/render") is None
    assert response_of("/v1/responses/a%2e") is None
    assert "/v1/responses/render" in PASS_THROUGH


async def test_a_chat_answered_elsewhere_has_no_say_in_it() -> None:
    async with world(prefill=1, decode=1, pod=EXTRAS) as w:
        await w.post(EMBEDDINGS, {"model": "sim", "input": "x"})
        await w.chat([user()])
        assert (await w.record(2)).route == "pd"
