"""A real decode pod killed under thirty streams: each ends soon and clearly, next turns are served, nothing is left.
When it is back, a hand-over of the gateway's own proves its pair with P before clients use it.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
import pytest

from gateway.net.records import RequestRecord
from gateway.wire.contract import Api
from loadtest.vllm_cpu.pod import Pod
from tests.vllm.support import (
    JSON_CONTENT,
    PATHS,
    PATIENCE_S,
    Client,
    Dialogue,
    VllmCluster,
    WatchedGateway,
    gateway_before,
    stream_events,
    until,
    warm_up,
    words,
)

pytestmark = pytest.mark.vllm

STREAMS = 30
ENDS_WITHIN_S = 2.0


@pytest.fixture
def mortal(vllm_cluster: VllmCluster) -> Iterator[list[Pod]]:
    """The decode pods, to be killed at will: those that are down in the end are started again."""
    yield vllm_cluster.decode
    for pod in vllm_cluster.decode:
        if not pod.alive():
            pod.restart()
            warm_up(vllm_cluster.prefill, pod)


@dataclass
class Stream:
    """One client's stream: what came so far, and when it ended."""

    dialogue: Dialogue
    request_id: str
    raw: bytes = b""
    ended_at: float = 0.0

    async def run(self, http: httpx.AsyncClient, gateway: WatchedGateway, salt: str) -> None:
        body = self.dialogue.body(cache_salt=salt, stream=True, max_tokens=300, ignore_eos=True)
        headers = {**JSON_CONTENT, "X-Request-Id": self.request_id}
        async with http.stream(
            "POST", gateway.url + PATHS[Api.CHAT], content=msgspec.json.encode(body), headers=headers
        ) as response:
            assert response.status_code == 200
            async for piece in response.aiter_bytes():
                self.raw += piece
        self.ended_at = time.monotonic()

    @property
    def broken(self) -> bool:
        """It ended with an error event; anything but that or a proper end fails here."""
        last = stream_events(self.raw)[-1]
        if last == b"data: [DONE]":
            return False
        error = msgspec.json.decode(last.removeprefix(b"data: "))["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return True


async def test_a_decode_pod_killed_under_thirty_streams_and_started_again(
    vllm_cluster: VllmCluster, client: Client, mortal: list[Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one conversation that is silent from before the death until after the return."""
    salt = uuid.uuid4().hex
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with (
        gateway_before(vllm_cluster, "local", pairs__probe=True) as gateway,
        httpx.AsyncClient(timeout=PATIENCE_S, limits=limits, trust_env=False) as http,
    ):
        silent = Dialogue(Api.CHAT)
        assert (await turn(gateway, vllm_cluster, client, silent, f"silent {salt}"))[0] == "pd"
        victim = next(pod for pod in mortal if pod.url == gateway.saw.last.answering)

        streams = [Stream(Dialogue(Api.CHAT), f"killed-{salt[:8]}-{number}") for number in range(STREAMS)]
        for number, stream in enumerate(streams):
            stream.dialogue.say(words(f"under {salt} {number}", 60))
        running = [asyncio.create_task(stream.run(http, gateway, salt)) for stream in streams]

        async def all_speak() -> bool:
            return all(stream.raw for stream in streams)

        await until(all_speak, PATIENCE_S, "all streams have begun", pause_s=0.01)
        theirs = {record.request_id for record in gateway.saw.begun if record.answering == victim.url}
        still = {stream.request_id for stream in streams if not stream.ended_at}
        await asyncio.to_thread(victim.kill)
        killed_at = time.monotonic()
        await asyncio.gather(*running)
        met = [stream for stream in streams if stream.request_id in theirs & still]
        assert met, "some of them ran when it died"
        assert max(stream.ended_at for stream in met) - killed_at < ENDS_WITHIN_S
        assert all(stream.broken for stream in met)
        assert not any(stream.broken for stream in streams if stream.request_id not in theirs)

        for stream in streams:
            stream.dialogue.hear("I see.")
            stream.dialogue.say("and then?")
        later = [client.generate(gateway, Api.CHAT, s.dialogue.body(cache_salt=salt, max_tokens=4)) for s in streams]
        assert len(await asyncio.gather(*later)) == STREAMS

        async def nothing_left() -> bool:
            parts = gateway.running.gateway.parts
            return parts.background_tasks == gateway.running.gateway.in_flight == parts.handovers.in_use == 0 and all(
                pod.in_flight == pod.load_tokens == 0 for pod in parts.fleet
            )

        await until(nothing_left, PATIENCE_S, "nothing of them is left in the gateway")

        pair = (vllm_cluster.prefill.url, victim.url)
        early = used_before_the_proof(gateway, pair, monkeypatch)
        await asyncio.to_thread(victim.restart)
        async with asyncio.timeout(PATIENCE_S):
            while not gateway.saw.pairs:
                await turn(gateway, vllm_cluster, client, Dialogue(Api.CHAT), f"meanwhile {uuid.uuid4().hex}")
        assert early == []
        assert gateway.saw.pairs == [(*pair, True)], "probed once, and it worked"
        told = [await turn(gateway, vllm_cluster, client, silent, f"after {salt} {number}") for number in range(2)]
        assert told == [("pd", victim.url), ("local", victim.url)], "its KV went with the process"
        assert gateway.saw.pairs == [(*pair, True)]


async def turn(
    gateway: WatchedGateway, cluster: VllmCluster, client: Client, dialogue: Dialogue, seed: str
) -> tuple[str | None, str | None]:
    """The next turn, which must be what a plain pod says; gives its route and who answered."""
    dialogue.say(words(seed, 60))
    body = dialogue.body(cache_salt=uuid.uuid4().hex, return_token_ids=True)
    right = await client.generate(cluster.plain, Api.CHAT, body)
    told = await client.generate(gateway, Api.CHAT, body | {"cache_salt": "the same at every turn"})
    assert told.token_ids == right.token_ids
    dialogue.hear(told.text)
    return gateway.saw.last.route, gateway.saw.last.answering


def used_before_the_proof(
    gateway: WatchedGateway, pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> list[RequestRecord]:
    """Those of clients' requests from now on that use the pair before it is reported as probed."""
    early: list[RequestRecord] = []
    saw, since = gateway.saw, len(gateway.saw.begun)
    real = saw.pair_probed

    def pair_probed(*told: Any) -> None:
        early.extend(each for each in saw.begun[since:] if (each.prefill, each.answering) == pair)
        real(*told)

    monkeypatch.setattr(saw, "pair_probed", pair_probed)
    return early
