"""A simulated pair hands over as MooncakeConnector does (vLLM `mooncake/mooncake_connector.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from loadtest.pod.simulated import SimulatedPod

PROMPT = "one two three four five six seven eight " * 8
TARGET = "/v1/completions"


class Pair:
    """P, D, and a client."""

    def __init__(self, prefill: SimulatedPod, decode: SimulatedPod, session: aiohttp.ClientSession) -> None:
        self.prefill, self.decode, self._session = prefill, decode, session

    async def ask(self, pod: SimulatedPod, params: dict[str, Any], **fields: Any) -> tuple[int, Any]:
        body = {"model": "sim", "prompt": PROMPT, "max_tokens": 8, "kv_transfer_params": params, **fields}
        async with self._session.post(pod.url + TARGET, json=body) as answer:
            return answer.status, await answer.json()

    async def first(self, transfer_id: str) -> tuple[int, Any]:
        params = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer_id}
        return await self.ask(self.prefill, params, max_tokens=1, ignore_eos=True)

    async def second(self, transfer_id: str, **fields: Any) -> tuple[int, Any]:
        async with self._session.get(self.prefill.url + "/query") as answer:
            known = await answer.json()
        params = {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "remote_bootstrap_addr": self.prefill.url,
            "remote_engine_id": known["0"]["engine_id"],
            "transfer_id": transfer_id,
        }
        return await self.ask(self.decode, params, **fields)

    def pinned(self) -> int:
        return int(self.prefill.summary["pinned_blocks"])


@asynccontextmanager
async def pair(**options: Any) -> AsyncIterator[Pair]:
    async with (
        SimulatedPod(role="prefill", **options) as prefill,
        SimulatedPod(role="decode", **options) as decode,
        aiohttp.ClientSession() as session,
    ):
        yield Pair(prefill, decode, session)


async def test_p_says_nothing_and_keeps_the_blocks_until_d_has_taken_them() -> None:
    async with pair() as pods:
        status, answer = await pods.first("t1")
        assert (status, answer["kv_transfer_params"]) == (200, None)
        assert pods.pinned() > 0
        status, through = await pods.second("t1")
        assert status == 200
        assert pods.pinned() == 0
        assert [transfer.ok for transfer in pods.decode.transfers] == [True]
        _, alone = await pods.ask(pods.prefill, {})
        assert through["choices"][0]["text"] == alone["choices"][0]["text"]


async def test_d_may_be_asked_first_and_waits_for_p() -> None:
    async with pair() as pods:
        early = asyncio.create_task(pods.second("t1"))
        await pods.decode.until(lambda: pods.decode.summary["pulling"] == 1)
        assert not early.done()
        await pods.first("t1")
        assert (await early)[0] == 200
        assert pods.pinned() == 0


async def test_a_d_that_refuses_the_request_frees_p_before_and_after_it_has_finished() -> None:
    async with pair() as pods:
        await pods.first("t1")
        assert pods.pinned() > 0
        assert (await pods.second("t1", model="nobody's"))[0] == 404
        await pods.prefill.until(lambda: pods.pinned() == 0)
        assert (await pods.second("t2", model="nobody's"))[0] == 404
        connector = pods.prefill.state.running.engine.connector
        assert connector is not None
        async with asyncio.timeout(30):
            while "t2" not in connector.unwanted:  # noqa: ASYNC110
                await asyncio.sleep(0)
        await pods.first("t2")
        assert (pods.pinned(), connector.unwanted) == (0, set())


async def test_another_engine_id_is_no_hand_over() -> None:
    async with pair() as pods:
        await pods.first("t1")
        params = {
            "do_remote_prefill": True,
            "remote_bootstrap_addr": pods.prefill.url,
            "remote_engine_id": "of the process before",
            "transfer_id": "t1",
        }
        status, _ = await pods.ask(pods.decode, params)
        assert status == 500


async def test_blocks_that_nobody_takes_are_freed_in_the_end() -> None:
    async with pair(lease_s=0.05) as pods:
        await pods.first("t1")
        await pods.prefill.until(lambda: pods.pinned() == 0)
        assert pods.prefill.summary["expired_leases"] == 1
