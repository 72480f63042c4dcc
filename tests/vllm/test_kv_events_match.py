"""KV events of the simulated pod against those of the real one: same events, same order, same links.

One scenario is played on both; what is compared is the shape of every event. Hashes are forgotten but for which of
them are the same, within a pod and between pods. Events that other requests cause on a real pod are not looked at.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from gateway.wire.legs import release_body
from gateway.wire.readback import release_params
from loadtest.pod import SimulatedPod
from loadtest.pod.probes import LEG_ONE, shape_of
from loadtest.vllm_cpu.pod import Pod
from tests.loadtest.kv_wire import Batch, Event, Told, listening, replay
from tests.vllm.support import BLOCK_TOKENS, MODEL, Answer, Client, Json, VllmCluster, until

pytestmark = pytest.mark.vllm

DEADLINE_S = 30.0
CHEAP_BLOCKS = 1000
"""A cache of more blocks takes too long to fill."""


@dataclass
class Site:
    """A cluster, real or simulated, as one scenario sees it."""

    client: Client
    prefill: Told
    decode: Told
    plain: Told
    mine: str
    """Every session of this scenario begins with it."""
    names: dict[int, str] = field(default_factory=dict)

    async def complete(
        self, told: Told, prompt: list[int], session: str, max_tokens: int = 1, **more: Any
    ) -> tuple[Answer, list[int]]:
        """A completion; the answer and the history after it."""
        body = {
            "model": MODEL,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            **more,
        }
        answer = await self.client.post(told.pod, "/v1/completions", body, {"X-Session-ID": self.mine + session})
        assert answer.status == 200, answer.raw
        return answer, prompt + answer.token_ids

    async def shapes(self, told: Told, at_least: int) -> list[Any]:
        """Shapes of this scenario's events since the last time; waits until there are `at_least` so many."""
        found: list[Any] = []

        async def enough() -> bool:
            for batch in await told.batches():
                found.extend(self._shape(event) for event in batch.events if self._is_mine(event))
            return len(found) >= at_least

        await until(enough, DEADLINE_S, f"{at_least} events of {told.topic} (has {found})")
        return found

    def _is_mine(self, event: Event) -> bool:
        if event["type"] == "BlockStored":
            return str(event.get("session_id")).startswith(self.mine)
        return any(name in self.names for name in event.get("block_hashes", ()))

    def _shape(self, event: Event) -> list[tuple[str, Any]]:
        """Fields in order. Hashes get names by order of appearance; of the tokens their number is left."""
        return [(key, self._value(key, value)) for key, value in event.items()]

    def _value(self, key: str, value: Any) -> Any:
        if key == "block_hashes":
            return [self._name(found) for found in value]
        if key == "parent_block_hash":
            return value if value is None else self._name(value)
        if key == "token_ids":
            return len(value)
        return value.removeprefix(self.mine) if key == "session_id" else value

    def _name(self, found: int) -> str:
        assert 0 <= found < 1 << 64
        return self.names.setdefault(found, f"block {len(self.names)}")


@dataclass
class Both:
    simulated: Site
    real: Site

    async def say_the_same(self, scene: Callable[[Site], Awaitable[Told]]) -> list[Any]:
        """Play a scene on both, compare what the pod that it gives back has said of it."""
        expected = await self.simulated.shapes(await scene(self.simulated), 0)
        found = await self.real.shapes(await scene(self.real), len(expected))
        assert found == expected
        return expected


def _site(client: Client, pods: list[Told], mine: str) -> Site:
    prefill, decode, plain = pods
    return Site(client, prefill, decode, plain, mine)


def _of_real(pod: Pod) -> Told:
    return Told(pod, pod.spec.event_endpoint, pod.spec.replay_endpoint, pod.spec.event_topic)


def _of_simulated(pod: SimulatedPod) -> Told:
    events = pod.events
    assert events.replay_endpoint is not None
    return Told(pod, events.endpoint, events.replay_endpoint, events.options.topic)


async def _blocks(client: Client, cluster: VllmCluster) -> int:
    """KV blocks of the plain pod."""
    page = (await client.http.get(f"{cluster.plain.url}/metrics")).text
    (line,) = [line for line in page.splitlines() if line.startswith("vllm:cache_config_info{")]
    return int(line.split('num_gpu_blocks="')[1].split('"')[0])


@pytest.fixture
async def both(vllm_cluster: VllmCluster, client: Client) -> AsyncIterator[Both]:
    real = [_of_real(pod) for pod in (vllm_cluster.prefill, vllm_cluster.decode[0], vllm_cluster.plain)]
    for told in real:
        old = await replay(told.replay_endpoint, 0)
        told.next_number = old[-1].number + 1 if old else 0
    mine = f"{uuid.uuid4().hex}-"
    # vLLM keeps one block for itself (`null_block`).
    options: dict[str, Any] = {"kv_events": True, "block_size": BLOCK_TOKENS, "model": MODEL}
    options["num_blocks"] = await _blocks(client, vllm_cluster) - 1
    async with AsyncExitStack() as stack:
        pods = [
            await stack.enter_async_context(SimulatedPod(role=role, **options))
            for role in ("prefill", "decode", "replica")
        ]
        yield Both(_site(client, [_of_simulated(pod) for pod in pods], mine), _site(client, real, mine))


@pytest.fixture
def ids() -> Callable[[int], list[int]]:
    """Token ids that no pod has seen, known to both vocabularies."""
    chance = random.Random(uuid.uuid4().int)
    return lambda count: chance.choices(range(300, 4000), k=count)


Ids = Callable[[int], list[int]]


async def test_two_turns_of_a_conversation(both: Both, ids: Ids) -> None:
    one, two = ids(100), ids(50)

    async def turns(site: Site) -> Told:
        _, history = await site.complete(site.plain, one, "s", max_tokens=40)
        await site.complete(site.plain, history + two, "s")
        return site.plain

    said = [dict(shape) for shape in await both.say_the_same(turns)]
    assert [event["block_hashes"] for event in said] == [
        ["block 0", "block 1", "block 2"],
        ["block 3"],
        ["block 4", "block 5"][: len(said[2]["block_hashes"])],
    ]
    assert [event["parent_block_hash"] for event in said] == [None, "block 2", "block 3"]


async def test_a_prefix_that_two_sessions_share(both: Both, ids: Ids) -> None:
    shared, one, other = ids(64), ids(40), ids(70)

    async def sessions(site: Site) -> Told:
        await site.complete(site.plain, shared + one, "a")
        await site.complete(site.plain, shared + other, "b")
        return site.plain

    said = [dict(shape) for shape in await both.say_the_same(sessions)]
    assert [(event["session_id"], len(event["block_hashes"])) for event in said] == [("a", 3), ("b", 2)]


async def test_a_prompt_of_whole_blocks_twice_and_a_salt(both: Both, ids: Ids) -> None:
    prompt = ids(96)

    async def again(site: Site) -> Told:
        await site.complete(site.plain, prompt, "a")
        await site.complete(site.plain, prompt, "b")
        await site.complete(site.plain, prompt, "c", 40, cache_salt="pepper")
        return site.plain

    said = [dict(shape) for shape in await both.say_the_same(again)]
    assert [event["block_hashes"] for event in said][1] == ["block 2"]
    assert [event["extra_keys"] for event in said[2:]] == [[["pepper"], None, None], [None]]


async def test_full_report_mode(both: Both, ids: Ids) -> None:
    prompt, more = ids(100), ids(40)

    async def reported(site: Site) -> Told:
        await site.complete(site.plain, prompt, "a")
        await site.complete(site.plain, prompt + more, "b", vllm_xargs={"kv_cache_report_mode": "full"})
        return site.plain

    said = [dict(shape) for shape in await both.say_the_same(reported)]
    assert [(event["session_id"], event["block_hashes"][0]) for event in said] == [
        ("a", "block 0"),
        ("b", "block 0"),
        ("b", "block 3"),
    ]


@pytest.mark.parametrize("length", [130, 128], ids=["open block", "whole blocks"])
async def test_a_hand_over(both: Both, ids: Ids, length: int) -> None:
    prompt, more = ids(length), ids(60)

    async def hand_over(site: Site, history: list[int]) -> list[int]:
        leg, _ = await site.complete(site.prefill, history, "s", kv_transfer_params=LEG_ONE)
        _, grown = await site.complete(site.decode, history, "s", 40, kv_transfer_params=leg.handover)
        return grown

    histories: dict[int, list[int]] = {}

    async def turn_one(site: Site) -> Told:
        histories[id(site)] = await hand_over(site, prompt)
        return site.decode

    async def turn_two(site: Site) -> Told:
        await hand_over(site, histories[id(site)] + more)
        return site.decode

    async def prefill(site: Site) -> Told:
        return site.prefill

    pulled = dict((await both.say_the_same(turn_one))[0])
    computed = dict((await both.say_the_same(prefill))[0])
    assert computed == pulled, "the same names on both pods"
    await both.say_the_same(turn_two)
    await both.say_the_same(prefill)


async def test_a_decode_pod_as_producer(both: Both, ids: Ids) -> None:
    prompt = ids(70)
    offers: list[Json] = []

    async def produce(site: Site) -> Told:
        leg, _ = await site.complete(site.decode, prompt, "s", kv_transfer_params=LEG_ONE)
        offers.append(leg.handover)
        # Roles are no rule either way: the prefill pod reads (and the decode pod may free its blocks).
        read, _ = await site.complete(site.prefill, prompt, "s", kv_transfer_params=leg.handover)
        offer = read.chunks[0].get("kv_transfer_params")
        if offer is not None:  # it reads back, so it keeps the blocks for a readback of its own: 480 s, unless told
            params = release_params(msgspec.Raw(msgspec.json.encode(offer)))
            assert params is not None
            refused = await site.client.post(site.decode.pod, "/v1/completions", release_body(params))
            assert refused.status == 404
        return site.decode

    async def read(site: Site) -> Told:
        return site.prefill

    assert await both.say_the_same(produce) == await both.say_the_same(read)
    simulated, real = offers
    assert shape_of(real) == shape_of(simulated)
    assert real["remote_num_tokens"] == simulated["remote_num_tokens"] == 70
    assert real["do_remote_prefill"] is simulated["do_remote_prefill"] is True


async def test_eviction(both: Both, ids: Ids, vllm_cluster: VllmCluster, client: Client) -> None:
    blocks = await _blocks(client, vllm_cluster)
    if blocks > CHEAP_BLOCKS:
        pytest.skip(f"{blocks} blocks take long to fill; start the pods with --num-gpu-blocks-override 400")
    length = min(8000, (blocks // 2 + 2) * BLOCK_TOKENS)
    prompt, fill = ids(100), [ids(length) for _ in range(-(-blocks * BLOCK_TOKENS // length) + 1)]

    async def filled(site: Site) -> Told:
        await site.complete(site.plain, prompt, "kept")
        mine, site.mine = site.mine, "others-"
        for other in fill:
            await site.complete(site.plain, other, "")
        site.mine = mine
        return site.plain

    said = [dict(shape) for shape in await both.say_the_same(filled)]
    assert [event["type"] for event in said] == ["BlockStored"] + ["BlockRemoved"] * 3
    assert [event["block_hashes"] for event in said[1:]] == [["block 2"], ["block 1"], ["block 0"]]


async def test_a_live_subscriber_hears_what_the_replay_says(both: Both, ids: Ids) -> None:
    for site in (both.simulated, both.real):
        told = site.plain
        async with listening(told.endpoint, topic=told.topic) as ear:
            heard: list[Batch] = []

            async def hears(site: Site = site, heard: list[Batch] = heard, ear: Any = ear) -> bool:
                await site.complete(site.plain, ids(40), "s")
                heard += await ear.waiting()
                return bool(heard)

            await until(hears, DEADLINE_S, "a first event")
        replayed = {batch.number: batch for batch in await replay(told.replay_endpoint, 0)}
        assert [replayed[batch.number] for batch in heard] == heard


async def test_the_list_of_publishers(both: Both, client: Client) -> None:
    answers = [
        (await client.http.get(f"{site.plain.pod.url}/kv_event_sources")).json() for site in (both.simulated, both.real)
    ]
    assert shape_of(answers[0]) == shape_of(answers[1])
    simulated, real = (answer["0"] for answer in answers)
    assert simulated | {"endpoint": "", "replay_endpoint": "", "topic": ""} == real | {
        "endpoint": "",
        "replay_endpoint": "",
        "topic": "",
    }
    assert simulated["endpoint"].startswith("tcp://*:")
    assert real["endpoint"].startswith("tcp://*:")


async def test_metrics_that_tell_a_restart_and_the_size_of_the_cache(both: Both, client: Client) -> None:
    for site in (both.simulated, both.real):
        page = (await client.http.get(f"{site.plain.pod.url}/metrics")).text
        (started,) = [line for line in page.splitlines() if line.startswith("process_start_time_seconds ")]
        assert float(started.split()[1]) > 1.7e9
        (config,) = [line for line in page.splitlines() if line.startswith("vllm:cache_config_info{")]
        for part in ('block_size="32"', 'enable_prefix_caching="True"', 'num_gpu_blocks="'):
            assert part in config
