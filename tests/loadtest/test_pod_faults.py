"""Ordered faults, seen from the client."""

import asyncio

import aiohttp
import pytest


async def test_a_refusal_strikes_as_often_as_ordered(client, plain):
    plain.fault("refuse_5xx", status=503, times=2)
    assert [(await client.chat(plain)).status for _ in range(3)] == [503, 503, 200]
    assert [record.fault for record in plain.requests] == ["refuse_5xx", "refuse_5xx", None]


async def test_a_fault_can_be_ordered_over_http_and_called_off(client, plain):
    order = {"kind": "refuse_5xx", "status": 500, "times": -1}
    assert (await client.post(plain, "/sim/fault", order)).status == 200
    assert (await client.chat(plain)).status == 500
    async with client.session.delete(plain.url + "/sim/fault"):
        pass
    assert (await client.chat(plain)).status == 200
    assert (await client.post(plain, "/sim/fault", {"kind": "nonsense"})).status == 400


async def test_a_fault_can_be_limited_to_a_path(client, plain):
    plain.fault("refuse_5xx", path="/v1/completions")
    assert (await client.chat(plain)).status == 200
    assert (await client.complete(plain)).status == 503


async def test_a_direct_fault_spares_prompts_whose_kv_another_pod_computed(client, prefill, decode):
    decode.fault("refuse_5xx", times=-1, direct=True)
    leg = await client.chat(prefill, max_tokens=1, kv_transfer_params={"do_remote_decode": True})
    assert (await client.chat(decode, kv_transfer_params=leg.json["kv_transfer_params"])).status == 200
    assert (await client.chat(decode)).status == 503


async def test_a_pod_that_hangs_sends_no_headers(client, plain):
    plain.fault("hang_before_headers")
    task = asyncio.create_task(client.chat(plain))
    await plain.until(lambda: len(plain.requests) == 1)
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await plain.until(lambda: plain.requests[-1].outcome == "gone")


async def test_a_reset_before_headers(client, plain):
    plain.fault("reset_before_headers")
    with pytest.raises(aiohttp.ClientError):
        await client.chat(plain)
    assert plain.requests[-1].outcome == "reset"


async def test_a_reset_in_a_stream_comes_after_so_many_events(client, plain):
    plain.fault("reset_after_events", events=3)
    answer = await client.chat(plain, stream=True)
    assert answer.broken
    assert len(answer.events) <= 3
    await plain.until(lambda: plain.summary["requests"] == 0)


async def test_a_reset_in_a_plain_answer_comes_half_way(client, plain):
    plain.fault("reset_after_events")
    answer = await client.chat(plain)
    assert answer.broken
    assert 0 < len(answer.raw) < int(answer.headers["content-length"])


async def test_a_stalled_stream_keeps_its_connection(client, plain):
    plain.fault("stall_after_events", events=2)
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    async with client.session.post(plain.url + "/v1/chat/completions", json=body) as answer:
        for _ in range(2):
            assert (await answer.content.readuntil(b"\n\n")).startswith(b"data: ")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await answer.content.readany()
    await plain.until(lambda: plain.requests[-1].outcome == "gone")


async def test_slow_headers_come_after_so_many_seconds(client, plain):
    plain.fault("slow_headers", seconds=0.05)
    start = asyncio.get_running_loop().time()
    assert (await client.chat(plain)).status == 200
    assert asyncio.get_running_loop().time() - start >= 0.05


@pytest.mark.parametrize(("events", "stream"), [(0, False), (0, True), (2, True)])
async def test_what_is_held_goes_on_when_the_faults_are_cleared(client, plain, events, stream):
    plain.fault("hold", events=events)
    asked = asyncio.create_task(client.chat(plain, stream=stream))
    await plain.until(lambda: len(plain.requests) == 1)
    other = await client.chat(plain, stream=stream)
    assert not asked.done()
    plain.clear_faults()
    assert (await asked).text == other.text != ""


async def test_leg_one_without_parameters_leaves_the_blocks_pinned(client, prefill):
    prefill.fault("drop_kv_params")
    leg = await client.chat(prefill, max_tokens=1, kv_transfer_params={"do_remote_decode": True})
    assert leg.json["kv_transfer_params"] is None
    assert prefill.summary["leases"] == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_writes_of_one_byte_make_the_same_answer(client, plain, stream):
    whole = await client.chat(plain, stream=stream)
    plain.fault("one_byte_writes")
    assert (await client.chat(plain, stream=stream)).text == whole.text


async def test_an_engine_error_in_a_plain_answer_is_a_500(client, plain):
    plain.fault("finish_error")
    assert (await client.chat(plain)).json["error"]["type"] == "InternalServerError"


async def test_an_engine_error_in_a_stream_is_an_event(client, plain):
    plain.fault("finish_error", events=2)
    events = (await client.chat(plain, stream=True)).events
    assert len(events) == 4
    assert events[2]["error"]["code"] == 500
    assert events[3] == "[DONE]"
    await plain.until(lambda: plain.summary["requests"] == 0)


async def test_health_fails_only_when_a_fault_names_it(client, plain):
    plain.fault("refuse_5xx")
    assert (await client.get(plain, "/health")).status == 200
    plain.fault("refuse_5xx", path="/health")
    assert [(await client.get(plain, "/health")).status for _ in range(2)] == [503, 200]
    assert (await client.chat(plain)).status == 503, "the first fault was still there"


async def test_a_reset_strikes_small_endpoints_too(client, plain):
    plain.fault("reset_before_headers", path="/metrics", times=-1)  # aiohttp asks again once
    with pytest.raises(aiohttp.ClientError):
        await client.get(plain, "/metrics")
