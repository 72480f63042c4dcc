"""KV events of a simulated pod: what is announced, by whom, in which order, and what a subscriber can miss."""

import asyncio

import pytest
import zmq

from loadtest.engine import profile
from loadtest.engine.core import Engine
from loadtest.engine.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from loadtest.engine.language import NumberLanguage
from loadtest.engine.request import EngineRequest
from loadtest.pod import SimulatedPod
from tests.loadtest.conftest import LEG_ONE
from tests.loadtest.kv_wire import listening, replay

SIZE = 16


def ids(count, start=1000):
    return list(range(start, start + count))


async def said(pod):
    """All events so far, as a subscriber decodes them."""
    return [event for batch in await replay(pod.events.replay_endpoint, 0) for event in batch.events]


async def complete(client, pod, prompt, max_tokens=1, session=None, **more):
    headers = {"X-Session-ID": session} if session else {}
    body = {"model": "sim", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "return_token_ids": True}
    answer = await client.post(pod, "/v1/completions", body | more, headers)
    assert answer.status == 200, answer.raw
    return answer.json


@pytest.fixture
async def pod():
    async with SimulatedPod(kv_events=True, name="p0", block_size=SIZE) as found:
        yield found


async def test_sockets_do_not_linger_from_the_start(pod):
    """Set when they are closed, it is too late: what a subscriber that has gone left unread may keep them for ever."""
    assert pod.events._pub.getsockopt(zmq.LINGER) == 0
    assert pod.events._replay.getsockopt(zmq.LINGER) == 0


# ---- the form


async def test_a_batch_is_three_frames_and_an_event_is_a_tagged_map(client, pod):
    async with listening(pod.events.endpoint, topic="kv@p0") as ear:
        await pod.until(lambda: pod.events.subscribers == 1)
        await complete(client, pod, ids(33), session="s", cache_salt="pepper")
        batch = await ear.next()
    assert (batch.number, batch.topic) == (0, "kv@p0")
    assert len(batch.fields) == 3
    assert batch.fields[2] == 0, "the data-parallel rank"
    (event,) = batch.events
    assert len(set(event.pop("block_hashes"))) == 2
    assert list(event.items()) == [
        ("type", "BlockStored"),
        ("parent_block_hash", None),
        ("token_ids", ids(32)),
        ("block_size", 16),
        ("lora_id", None),
        ("medium", "GPU"),
        ("lora_name", None),
        ("extra_keys", [["pepper"], None]),
        ("group_idx", 0),
        ("kv_cache_spec_kind", "full_attention"),
        ("session_id", "s"),
    ]


async def test_the_topic_ends_with_the_port_where_the_pod_has_no_name(client):
    async with SimulatedPod(kv_events=True) as pod:
        await complete(client, pod, ids(16))
        (batch,) = await replay(pod.events.replay_endpoint, 0)
        assert batch.topic == f"kv@{pod.port}"


async def test_the_session_is_the_bodys_then_the_headers_then_the_extra_arguments(client, pod):
    extra = {"vllm_xargs": {"session_id": "x"}}
    await complete(client, pod, ids(16, 1000), session="h", session_id="b", **extra)
    await complete(client, pod, ids(16, 2000), session="h", **extra)
    await complete(client, pod, ids(16, 3000), **extra)
    await complete(client, pod, ids(16, 4000))
    assert [event.get("session_id", "none") for event in await said(pod)] == ["b", "h", "x", "none"]


# ---- what is announced


async def test_turn_two_announces_what_is_new_after_the_last_old_block(client, pod):
    first = await complete(client, pod, ids(40), max_tokens=9, session="s")
    history = ids(40) + first["choices"][0]["token_ids"]
    await complete(client, pod, history + ids(20, 5000), session="s")
    turn_one, grown, turn_two = await said(pod)
    assert (len(turn_one["block_hashes"]), turn_one["parent_block_hash"]) == (2, None)
    assert grown["block_hashes"] != turn_one["block_hashes"]
    assert grown["token_ids"] == history[32:48], "the block that filled while answering"
    assert grown["parent_block_hash"] == turn_one["block_hashes"][1]
    assert turn_two["parent_block_hash"] == grown["block_hashes"][0]
    assert turn_two["token_ids"] == (history + ids(20, 5000))[48:64]


async def test_the_last_token_of_an_answer_is_never_computed_and_fills_no_block(client, pod):
    await complete(client, pod, ids(15), max_tokens=1)
    assert await said(pod) == []
    await complete(client, pod, ids(15), max_tokens=2)
    assert len(await said(pod)) == 1


async def test_one_step_is_one_batch_and_long_prompts_take_several(client):
    async with SimulatedPod(kv_events=True, block_size=SIZE, max_num_batched_tokens=64) as pod:
        await complete(client, pod, ids(100))
        first, second = await replay(pod.events.replay_endpoint, 0)
    assert [len(event["block_hashes"]) for event in first.events + second.events] == [4, 2]
    assert second.events[0]["parent_block_hash"] == first.events[0]["block_hashes"][-1]


async def test_a_shared_prefix_is_announced_once_with_the_session_that_came_first(client, pod):
    await complete(client, pod, ids(32) + ids(16, 5000), session="a")
    await complete(client, pod, ids(32) + ids(17, 6000), session="b")
    first, second = await said(pod)
    assert (first["session_id"], len(first["block_hashes"])) == ("a", 3)
    assert (second["session_id"], len(second["block_hashes"])) == ("b", 1)
    assert second["parent_block_hash"] == first["block_hashes"][1]


async def test_full_report_mode_announces_hits_again_for_the_session_that_hit(client, pod):
    await complete(client, pod, ids(40), session="a")
    await complete(client, pod, ids(50), session="b", vllm_xargs={"kv_cache_report_mode": "full"})
    first, again, new = await said(pod)
    assert again == first | {"session_id": "b"}
    assert new["parent_block_hash"] == first["block_hashes"][1]


async def test_another_salt_is_another_block_and_is_named_at_the_first_block_only(client, pod):
    await complete(client, pod, ids(16))
    await complete(client, pod, ids(16), max_tokens=20, cache_salt="x")
    plain, salted, grown = await said(pod)
    assert plain["block_hashes"] != salted["block_hashes"]
    assert [event["extra_keys"] for event in (plain, salted, grown)] == [[None], [["x"]], [None]]
    assert grown["parent_block_hash"] == salted["block_hashes"][0]


async def test_a_block_computed_twice_is_announced_twice(client, pod):
    """A prompt of whole blocks recomputes its last one, since something has to be computed."""
    await complete(client, pod, ids(32))
    await complete(client, pod, ids(32))
    first, second = await said(pod)
    assert second["block_hashes"] == first["block_hashes"][1:]
    assert second["parent_block_hash"] == first["block_hashes"][0]


async def test_blocks_go_one_by_one_the_end_of_the_oldest_first_before_what_replaces_them(client):
    async with SimulatedPod(kv_events=True, block_size=SIZE, num_blocks=4) as pod:
        await complete(client, pod, ids(48))
        await complete(client, pod, ids(48, 5000))
        stored, *removed, new = await said(pod)
    assert removed == [
        {"type": "BlockRemoved", "block_hashes": [name], "medium": "GPU", "group_idx": 0}
        for name in reversed(stored["block_hashes"][1:])
    ]
    assert new["type"] == "BlockStored"


async def test_of_two_blocks_with_one_name_each_is_removed_for_itself(client):
    async with SimulatedPod(kv_events=True, block_size=SIZE, num_blocks=4) as pod:
        await complete(client, pod, ids(32))
        await complete(client, pod, ids(32))
        await complete(client, pod, ids(63, 5000))
        first, again, *rest = await said(pod)
    assert again["block_hashes"] == first["block_hashes"][1:]
    removed = [event["block_hashes"][0] for event in rest if event["type"] == "BlockRemoved"]
    assert sorted(removed) == sorted(first["block_hashes"] + again["block_hashes"])


async def test_an_idle_pod_says_nothing_of_a_reset_until_its_next_step(client, pod):
    await complete(client, pod, ids(32))
    assert (await client.post(pod, "/reset_prefix_cache", {})).json == {"success": True}
    assert len(pod.events.batches) == 1
    await complete(client, pod, ids(32))
    _, batch = await replay(pod.events.replay_endpoint, 0)
    assert [event["type"] for event in batch.events] == ["AllBlocksCleared", "BlockStored"]
    assert batch.events[0] == {"type": "AllBlocksCleared"}


async def test_a_hand_over_is_announced_by_both_pods_under_the_same_names(client):
    async with (
        SimulatedPod(role="prefill", kv_events=True, block_size=SIZE) as p,
        SimulatedPod(role="decode", kv_events=True, block_size=SIZE) as d,
    ):
        leg = await complete(client, p, ids(40), session="s", kv_transfer_params=LEG_ONE)
        params = leg["kv_transfer_params"]
        await complete(client, d, ids(40), max_tokens=10, session="s", kv_transfer_params=params)
        (on_p,), (pulled, grown) = await said(p), await said(d)
    assert pulled == on_p
    assert grown["parent_block_hash"] == pulled["block_hashes"][1]


async def test_a_pulled_last_block_is_not_announced_again_when_its_last_token_is_computed(client):
    async with (
        SimulatedPod(role="prefill", kv_events=True, block_size=SIZE) as p,
        SimulatedPod(role="decode", kv_events=True, block_size=SIZE) as d,
    ):
        leg = await complete(client, p, ids(32), kv_transfer_params=LEG_ONE)
        await complete(client, d, ids(32), max_tokens=4, kv_transfer_params=leg["kv_transfer_params"])
        assert [len(event["block_hashes"]) for event in await said(d)] == [2]


def test_the_second_request_of_a_step_finds_what_the_first_will_compute():
    engine = Engine(profile.load("instant").with_cache(block_size=4), NumberLanguage(), kv_events=True)
    for name in ("a", "b"):
        engine.submit(EngineRequest(name, range(10), 1, session_id=name), 0.0)
    result = engine.step(0.0)
    (event,) = result.events
    assert isinstance(event, BlockStored)
    assert (event.session_id, event.token_ids) == ("a", list(range(8)))
    assert {output.request_id: output.prefill.cached_local for output in result.outputs} == {"a": 0, "b": 8}


def test_an_engine_without_events_says_nothing():
    engine = Engine(profile.load("instant").with_cache(block_size=4, num_blocks=3), NumberLanguage())
    for name, start in (("a", 0), ("b", 100)):
        engine.submit(EngineRequest(name, range(start, start + 12), 1), 0.0)
        assert engine.step(0.0).events == ()
    assert engine.reset_prefix_cache()
    engine.submit(EngineRequest("c", range(12), 1), 0.0)
    assert engine.step(0.0).events == ()


def test_an_eviction_is_told_in_the_step_that_needs_the_block():
    engine = Engine(profile.load("instant").with_cache(block_size=4, num_blocks=3), NumberLanguage(), kv_events=True)
    engine.submit(EngineRequest("a", range(8), 1), 0.0)
    engine.step(0.0)
    engine.submit(EngineRequest("b", range(100, 108), 1), 0.0)
    kinds = [type(event) for event in engine.step(0.0).events]
    assert kinds == [BlockRemoved, BlockStored]
    engine.reset_prefix_cache()
    assert engine.step(0.0).events == (), "nobody is there to make it step"
    engine.submit(EngineRequest("c", range(4), 1), 0.0)
    assert [type(event) for event in engine.step(0.0).events] == [AllBlocksCleared, BlockStored]


# ---- what a subscriber can miss


async def test_a_replay_starts_where_it_is_asked_to_and_ends_with_the_marker(client, pod):
    for turn in range(4):
        await complete(client, pod, ids(16, 1000 * turn + 1))
    endpoint = pod.events.replay_endpoint
    assert [batch.number for batch in await replay(endpoint, 0)] == [0, 1, 2, 3]
    assert [batch.number for batch in await replay(endpoint, 2)] == [2, 3]
    assert await replay(endpoint, 4) == []


async def test_a_replay_goes_back_as_far_as_the_buffer(client):
    async with SimulatedPod(kv_events=True, buffer_steps=2) as pod:
        for turn in range(4):
            await complete(client, pod, ids(16, 1000 * turn + 1))
        assert [batch.number for batch in await replay(pod.events.replay_endpoint, 0)] == [2, 3]


@pytest.mark.parametrize(("replayable", "left"), [(True, [0, 1, 2, 3]), (False, [0, 3])])
async def test_dropped_batches_leave_a_gap_in_the_numbers(client, pod, replayable, left):
    async with listening(pod.events.endpoint) as ear:
        await pod.until(lambda: pod.events.subscribers == 1)
        await complete(client, pod, ids(16, 1000))
        order = {"count": 2, "replayable": replayable}
        assert (await client.post(pod, "/sim/kv_events/drop", order)).json == {"ok": True}
        for turn in (2, 3, 4):
            await complete(client, pod, ids(16, 1000 * turn))
        assert [batch.number for batch in await ear.take(2)] == [0, 3]
    assert [batch.number for batch in await replay(pod.events.replay_endpoint, 0)] == left


async def test_a_restarted_pod_begins_again_at_zero_on_the_same_endpoints(client):
    options = {"kv_events": True, "name": "p", "block_size": SIZE}
    async with SimulatedPod(**options) as pod:
        ports = {"port": pod.port, **_event_ports(pod)}
        begun = await _started(client, pod)
        await complete(client, pod, ids(16))
        await complete(client, pod, ids(16, 2000))
        async with listening(pod.events.endpoint) as ear:
            await pod.until(lambda: pod.events.subscribers == 1)
            await complete(client, pod, ids(16, 3000))
            assert (await ear.next()).number == 2
            await pod.__aexit__(None, None, None)
            async with SimulatedPod(**options, **ports) as again:
                # A SUB socket subscribes again only while somebody reads from it.
                heard = asyncio.create_task(ear.next())
                await again.until(lambda: again.events.subscribers == 1)
                await complete(client, again, ids(16))
                assert (await heard).number == 0
                assert await _started(client, again) > begun


def _event_ports(pod):
    endpoints = (pod.events.endpoint, pod.events.replay_endpoint)
    return dict(zip(("event_port", "replay_port"), (int(e.rsplit(":", 1)[1]) for e in endpoints), strict=True))


async def _started(client, pod):
    page = (await client.get(pod, "/metrics")).raw.decode()
    (line,) = [line for line in page.splitlines() if line.startswith("process_start_time_seconds ")]
    return float(line.split()[1])


async def test_a_subscriber_that_reads_nothing_holds_nobody_up(client, pod):
    async with listening(pod.events.endpoint) as ear:
        await pod.until(lambda: pod.events.subscribers == 1)
        async with asyncio.timeout(20):
            for turn in range(50):
                await complete(client, pod, ids(160, 1000 * turn + 1))
        assert [batch.number for batch in await ear.take(50)] == list(range(50))
    await pod.until(lambda: pod.events.subscribers == 0)


async def test_a_pod_lists_its_publishers_with_the_wildcard_they_bind_to(client, pod, plain):
    (rank, source), *others = (await client.get(pod, "/kv_event_sources")).json.items()
    ports = {name: f"tcp://*:{port}" for name, port in _event_ports(pod).items()}
    assert (rank, others) == ("0", [])
    assert list(source.items()) == [
        ("enable_kv_cache_events", True),
        ("publisher", "zmq"),
        ("endpoint", ports["event_port"]),
        ("replay_endpoint", ports["replay_port"]),
        ("buffer_steps", 10_000),
        ("hwm", 100_000),
        ("max_queue_size", 100_000),
        ("topic", "kv@p0"),
    ]
    assert (await client.get(plain, "/kv_event_sources")).json == {}


async def test_a_pod_may_have_events_without_a_replay(client):
    async with SimulatedPod(kv_events=True, replay=False) as pod:
        assert pod.events.replay_endpoint is None
        assert (await client.get(pod, "/kv_event_sources")).json["0"]["replay_endpoint"] is None
        await complete(client, pod, ids(16))
        ((number, batch),) = pod.events.batches
        assert (number, len(batch.events)) == (0, 1)


async def test_without_a_prefix_cache_there_are_neither_hits_nor_events(client):
    async with SimulatedPod(kv_events=True, prefix_caching=False, block_size=SIZE) as pod:
        for _ in range(2):
            answer = await client.chat(pod)
        details = answer.json["usage"]["prompt_tokens_details"]
        assert (details["cached_tokens"], details["created_cache_tokens"]) == (0, 0)
        assert await said(pod) == []
        page = (await client.get(pod, "/metrics")).raw.decode()
    assert 'enable_prefix_caching="False"' in page
    assert 'vllm:prefix_cache_queries_total{engine="0",model_name="sim"} 0.0' in page
