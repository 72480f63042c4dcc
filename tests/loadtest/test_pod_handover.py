"""Prefill and decode pods over HTTP."""

import asyncio
import time

import aiohttp
import pytest

from loadtest.pod import SimulatedPod

LONG = [{"role": "user", "content": "word " * 400}]
LEG_ONE = {"do_remote_decode": True, "do_remote_prefill": False}


async def leg_one(client, pod, **more):
    answer = await client.chat(pod, **({"max_tokens": 1, "kv_transfer_params": LEG_ONE} | more))
    return answer.json["kv_transfer_params"]


async def test_leg_one_answers_with_coordinates_and_pins_blocks(client, prefill):
    params = await leg_one(client, prefill, messages=LONG)
    assert list(params) == [
        "do_remote_prefill",
        "do_remote_decode",
        "remote_block_ids",
        "remote_engine_id",
        "remote_request_id",
        "remote_host",
        "remote_port",
        "tp_size",
        "dcp_size",
        "pp_size",
        "remote_num_tokens",
        "remote_blocks_expiry_time",
        "transfer_mode",
        "remote_prefill_cached_tokens",
    ]
    assert prefill.summary["pinned_blocks"] == len(params["remote_block_ids"][0]) > 0


async def test_leg_two_reads_once_and_frees(client, prefill, decode):
    answer = await client.hand_over(prefill, decode, messages=LONG)
    assert answer.status == 200
    assert prefill.summary["pinned_blocks"] == 0
    (transfer,) = decode.transfers
    assert transfer.ok
    assert transfer.num_bytes == transfer.num_blocks * 16 * 131072


async def test_the_decode_pod_reports_the_prefill_pods_cache_hits(client, prefill, decode):
    cached = []
    for _ in range(2):
        usage = (await client.hand_over(prefill, decode, messages=LONG)).json["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] == 0
    assert cached[1] == (usage["prompt_tokens"] - 1) // 16 * 16
    assert [transfer.num_blocks for transfer in decode.transfers][1] == 1, "only the open block is read again"


async def test_kv_of_another_prompt_does_not_give_the_right_text(client, prefill, decode, plain):
    params = await leg_one(client, prefill, messages=[{"role": "user", "content": "some " + "word " * 399}])
    answer = await client.chat(decode, messages=LONG, kv_transfer_params=params)
    assert answer.status == 200
    assert answer.text != (await client.chat(plain, messages=LONG)).text


async def test_an_engine_id_from_before_a_restart_is_an_error(client, prefill, decode):
    params = await leg_one(client, prefill) | {"remote_engine_id": "another"}
    answer = await client.chat(decode, kv_transfer_params=params)
    assert answer.status == 500
    assert answer.json["error"] == {
        "message": "Internal server error",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }


async def test_in_a_stream_a_failed_read_comes_after_the_role_chunk(client, prefill, decode):
    params = await leg_one(client, prefill) | {"remote_engine_id": "another"}
    answer = await client.chat(decode, kv_transfer_params=params, stream=True)
    assert answer.status == 200
    assert answer.events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert answer.events[1]["error"]["code"] == 500
    assert answer.events[2:] == ["[DONE]"]
    assert decode.requests[-1].outcome == "error"


async def test_a_prefill_pod_that_died_is_an_error_of_the_decode_pod(client, decode):
    async with SimulatedPod(role="prefill") as prefill:
        params = await leg_one(client, prefill)
    assert (await client.chat(decode, kv_transfer_params=params)).status == 500


async def test_a_pod_once_met_is_found_whatever_address_the_parameters_name(client, prefill, decode):
    """As on real pods: NIXL shakes hands once per engine id."""
    await client.hand_over(prefill, decode)
    params = await leg_one(client, prefill) | {"remote_port": 9}
    assert (await client.chat(decode, kv_transfer_params=params)).status == 200


async def test_a_pod_never_met_that_does_not_answer_costs_the_handshake_timeout(client):
    async with SimulatedPod(role="decode", handshake_timeout_s=5.0, time_scale=100) as decode:
        async with SimulatedPod(role="prefill") as prefill:
            params = await leg_one(client, prefill)
        start = decode.state.running.now()
        assert (await client.chat(decode, kv_transfer_params=params)).status == 500
        assert decode.state.running.now() - start >= 5.0


async def test_the_same_parameters_twice_are_read_twice(client, prefill, decode):
    params = await leg_one(client, prefill, messages=LONG)
    answers = [await client.chat(decode, messages=LONG, kv_transfer_params=params) for _ in range(2)]
    assert answers[0].text == answers[1].text
    assert prefill.summary["late_releases"] == 1


async def test_a_stop_string_in_leg_one_costs_the_parameters_unless_the_length_ends_it_too(client, prefill):
    first = (await client.chat(prefill, max_tokens=1, ignore_eos=True)).text
    assert await leg_one(client, prefill, stop=first[0]) is not None
    assert await leg_one(client, prefill, stop=first[0], max_tokens=5) is None


async def test_a_leg_two_that_is_refused_frees_the_prefill_pod(client, prefill, decode):
    params = await leg_one(client, prefill)
    assert prefill.summary["leases"] == 1
    assert (await client.chat(decode, kv_transfer_params=params, temperature=9)).status == 400
    await prefill.until(lambda: prefill.summary["leases"] == 0)


async def test_a_lease_that_nobody_reads_runs_out(client):
    async with SimulatedPod(role="prefill", lease_s=30, time_scale=1000) as prefill:
        await leg_one(client, prefill)
        await prefill.until(lambda: prefill.summary["expired_leases"] == 1)
        assert prefill.summary["pinned_blocks"] == 0


async def test_heartbeats_keep_a_lease_while_the_read_waits(client):
    """The read takes 60 simulated seconds, twice the lease."""
    async with (
        SimulatedPod(role="prefill", lease_s=30, time_scale=100) as prefill,
        SimulatedPod(
            role="decode", lease_s=30, time_scale=100, bandwidth_gbps=8 * 2 * 131072 * 16 / 60 / 1e9
        ) as decode,
    ):
        answer = await client.hand_over(prefill, decode, messages=[{"role": "user", "content": "hi " * 20}])
        assert answer.status == 200
        assert prefill.summary["expired_leases"] == 0
        assert prefill.summary["late_releases"] == 0


async def test_a_client_that_leaves_during_leg_two_frees_both_pods(client, prefill):
    slow = SimulatedPod(role="decode", profile="h100-llama3.1-8b", bandwidth_gbps=0.5)
    async with slow as decode:
        params = await leg_one(client, prefill, messages=LONG)
        task = asyncio.create_task(client.chat(decode, messages=LONG, kv_transfer_params=params))
        await decode.until(lambda: decode.summary["pulling"] == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await decode.until(lambda: decode.requests[-1].outcome == "gone")
        assert prefill.summary["leases"] == 1, "the read is under way"
        await prefill.until(lambda: prefill.summary["leases"] == 0)
        await decode.until(lambda: decode.summary["free_blocks"] == decode.summary["blocks"])


async def test_a_client_that_leaves_a_stream_frees_its_slot(client):
    async with SimulatedPod(profile="h100-llama3.1-8b") as pod:
        body = {"messages": LONG, "max_tokens": 500, "ignore_eos": True, "stream": True}
        async with client.session.post(pod.url + "/v1/chat/completions", json=body) as answer:
            await answer.content.readuntil(b"\n\n")
            assert pod.summary["running"] == 1
        await pod.until(lambda: pod.summary["requests"] == 0)
        assert pod.requests[-1].outcome == "gone"
        assert pod.summary["free_blocks"] == pod.summary["blocks"]


async def test_forwarded_prompt_ids_replace_the_messages(client, prefill, decode):
    first = await client.chat(prefill, max_tokens=1, kv_transfer_params=LEG_ONE, return_token_ids=True)
    params = first.json["kv_transfer_params"] | {"prompt_token_ids": first.json["prompt_token_ids"]}
    answer = await client.chat(decode, kv_transfer_params=params, messages=[{"role": "user", "content": "?"}])
    assert answer.text == (await client.chat(decode)).text


async def test_without_bidirectional_transfer_the_decode_pod_offers_nothing(client, prefill, decode):
    assert (await client.hand_over(prefill, decode)).json["kv_transfer_params"] is None
    assert decode.summary["leases"] == 0


async def test_readback_gives_the_prefill_pod_the_history(client):
    both = {"bidirectional": True, "recompute_threshold_tokens": 16}
    async with SimulatedPod(role="prefill", **both) as prefill, SimulatedPod(role="decode", **both) as decode:
        first = await client.hand_over(prefill, decode, messages=LONG, max_tokens=40, ignore_eos=True)
        offer = first.json["kv_transfer_params"]
        assert offer["do_remote_decode"] is True
        assert decode.summary["leases"] == 1
        prefill.reset_prefix_cache()
        history = [*LONG, {"role": "assistant", "content": first.text}, {"role": "user", "content": "more"}]
        leg = await client.chat(prefill, messages=history, max_tokens=1, kv_transfer_params=offer)
        assert leg.json["usage"]["prompt_tokens_details"]["cached_tokens"] == offer["remote_num_tokens"]
        assert decode.summary["leases"] == 0
        answer = await client.chat(decode, messages=history, kv_transfer_params=leg.json["kv_transfer_params"])
        assert answer.text == (await client.chat(decode, messages=history)).text


async def test_a_pod_without_connector_ignores_the_parameters(client, plain):
    assert (await client.chat(plain, kv_transfer_params=LEG_ONE)).json["kv_transfer_params"] is None
    assert "nixl" not in (await client.get(plain, "/metrics")).raw.decode()


async def test_the_real_profile_takes_real_time(client):
    async with SimulatedPod(profile="h100-llama3.1-8b", time_scale=4.0) as pod:
        start = time.perf_counter()
        await client.chat(pod, max_tokens=11, ignore_eos=True)
        took_ms = (time.perf_counter() - start) * 4e3
        assert took_ms > 28 + 10 * 7.8, "not less than the model says: TTFT and ten decode steps"


async def test_everything_is_closed_at_exit(client):
    async with SimulatedPod() as pod:
        url = pod.url
        await client.chat(pod)
    with pytest.raises(aiohttp.ClientConnectorError):
        await client.session.get(url + "/health")
    assert not [task for task in asyncio.all_tasks() if task.get_name() in ("engine", "pull", "heartbeat")]
