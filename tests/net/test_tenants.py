"""Tenants over HTTP: models, quotas, classes, weights, isolation; the file read again; quotas shared by gateways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.core.keys import hash_of
from loadtest.pod.simulated import SimulatedPod
from tests.net.cluster import cluster, needs_server
from tests.net.test_disconnects import eventually
from tests.net.world import CHAT, Reply, World, user, world
from tests.redis_server import RedisServer

ALICE, BOB = "ppd-alice", "ppd-bob"


def files(folder: Path, tenants: str) -> dict[str, Any]:
    """Settings with keys of two tenants and a file of tenants."""
    (folder / "keys").write_text(f"{hash_of(ALICE)} alice\n{hash_of(BOB)} bob\n")
    (folder / "tenants").write_text(tenants)
    return {"api_keys": str(folder / "keys"), "tenants_file": str(folder / "tenants")}


@asynccontextmanager
async def tenanted(folder: Path, tenants: str, **options: Any) -> AsyncIterator[World]:
    async with world(prefill=1, decode=1, **files(folder, tenants), **options) as made:
        yield made


async def ask(w: World, key: str, path: str = CHAT, url: str | None = None, **fields: Any) -> Reply:
    body = {"model": "sim", "messages": [user()], "max_tokens": 8, **fields}
    return await w.post(path, body, {"Authorization": f"Bearer {key}"}, url)


async def test_a_model_that_is_not_the_tenants_is_as_one_that_does_not_exist(tmp_path: Path) -> None:
    async with tenanted(tmp_path, '[tenants.alice]\nmodels = ["sim"]\n[tenants.bob]\nmodels = ["other"]') as w:
        assert (await ask(w, ALICE)).status == 200
        refused = await ask(w, BOB)
        assert refused.status == 404
        assert refused.json["error"]["param"] == "model"
        anthropic = await ask(w, BOB, "/v1/messages")
        assert (anthropic.status, anthropic.json["error"]["type"]) == (404, "not_found_error")
        assert (await ask(w, BOB, "/v1/embeddings", input="x")).status == 404
        assert all(request.body["model"] == "sim" for request in w.decode[0].requests)


async def test_a_tenant_is_told_of_its_models_alone(tmp_path: Path) -> None:
    tenants = '[tenants.alice]\nmodels = ["other", "gone"]'
    async with tenanted(tmp_path, tenants, others=(("prefill", "other"), ("decode", "other"))) as w:

        async def listed(key: str) -> list[str]:
            async with w.session.get(f"{w.url}/v1/models", headers={"Authorization": f"Bearer {key}"}) as reply:
                assert reply.status == 200
                return [card["id"] for card in (await reply.json())["data"]]

        assert await listed(ALICE) == ["other"]
        assert await listed(BOB) == ["sim", "other"]


async def test_a_quota_of_requests_is_a_429_for_that_tenant_alone(tmp_path: Path) -> None:
    async with tenanted(tmp_path, "[tenants.alice]\nrequests_per_s = 0.1\nburst_s = 10") as w:
        assert (await ask(w, ALICE)).status == 200
        over = await ask(w, ALICE)
        assert over.status == 429
        assert 5 <= int(over.headers["retry-after"]) <= 10
        assert (await ask(w, BOB)).status == 200
        assert (await w.record(2)).refused == "quota"


async def test_a_quota_of_tokens_is_charged_what_was_used(tmp_path: Path) -> None:
    async with tenanted(tmp_path, "[tenants.alice]\ntokens_per_min = 600000") as w:
        reply = await ask(w, ALICE)
        usage = reply.json["usage"]
        tenancy = w.gateway.parts.tenancy
        assert tenancy is not None
        level = tenancy.quotas.account(tenancy.book.of("alice")).tokens.level
        assert level is not None
        used = 100_000 - level
        assert usage["total_tokens"] - 20_000 < used <= usage["total_tokens"]


async def test_what_goes_to_the_canarys_own_proxy_is_charged_as_well(tmp_path: Path) -> None:
    async with SimulatedPod(role="replica") as proxy:
        flags = {"canary.percent": 0, "canary.passthrough": proxy.url}
        tenants = "[tenants.alice]\ntokens_per_min = 6000\nrequests_per_s = 0.1\nburst_s = 20"
        async with tenanted(tmp_path, tenants, **flags) as w:
            used = (await ask(w, ALICE)).json["usage"]["total_tokens"]
            tenancy = w.gateway.parts.tenancy
            assert tenancy is not None
            account = tenancy.quotas.account(tenancy.book.of("alice"))
            level = account.tokens.level
            assert level is not None
            assert 2000 - used <= level < 2000 - used + 100
            assert account.in_flight == 0
            proxy.fault("refuse_5xx", status=500, times=1)
            assert [(await ask(w, ALICE)).status for _ in range(2)] == [500, 429]
            assert (await w.record(3)).refused == "quota"
            assert len(proxy.requests) == 2
            assert account.tokens.level >= level, "what failed costs nothing"
            assert not w.decode[0].requests


async def test_a_request_that_failed_is_not_charged(tmp_path: Path) -> None:
    async with tenanted(tmp_path, "[tenants.alice]\ntokens_per_min = 60\nburst_s = 10\nmax_in_flight = 1") as w:
        w.prefill[0].fault("refuse_5xx", status=500, times=-1)
        w.decode[0].fault("refuse_5xx", status=500, times=-1)
        assert (await ask(w, ALICE)).status == 500
        tenancy = w.gateway.parts.tenancy
        assert tenancy is not None
        account = tenancy.quotas.account(tenancy.book.of("alice"))
        assert (account.in_flight, account.tokens.level) == (0, 10.0)


async def test_no_more_than_its_requests_in_flight_are_let_in(tmp_path: Path) -> None:
    async with tenanted(tmp_path, "[tenants.alice]\nmax_in_flight = 1") as w:
        w.decode[0].fault("hold")
        first = asyncio.create_task(ask(w, ALICE))
        await eventually(lambda: len(w.decode[0].requests) == 1)
        assert (await ask(w, ALICE)).status == 429
        w.decode[0].clear_faults()
        assert (await first).status == 200
        assert (await ask(w, ALICE)).status == 200


async def test_class_and_weights_are_the_tenants(tmp_path: Path) -> None:
    text = '[tenants.alice]\nclass = "interactive"\nweights = "ttft=5,tpot=1"\n[default]\nclass = "batch"'
    async with tenanted(tmp_path, text) as w:
        await ask(w, ALICE)
        await ask(w, BOB)
        assert [(await w.record(number)).service for number in (1, 2)] == ["interactive", "batch"]


async def test_one_tenant_may_be_isolated_and_another_not(tmp_path: Path) -> None:
    async with tenanted(tmp_path, "[tenants.alice]\nisolate = true") as w:
        await ask(w, ALICE)
        await ask(w, BOB)
        first, second = w.decode[0].requests
        assert "cache_salt" in first.body
        assert "cache_salt" not in second.body


async def test_the_file_is_read_again_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    async with tenanted(tmp_path, "[tenants.alice]\nmodels = []") as w:
        assert (await ask(w, ALICE)).status == 404
        (tmp_path / "tenants").write_text('[tenants.alice]\nmodels = ["sim"]')
        w.running.reload()
        tenancy = w.gateway.parts.tenancy
        assert tenancy is not None
        await eventually(lambda: tenancy.book.of("alice").models == frozenset({"sim"}))
        assert (await ask(w, ALICE)).status == 200
        (tmp_path / "tenants").write_text("[tenants.alice]\nshare = -1")
        before = tenancy.book
        w.running.reload()
        files_of_tenants = w.running.watched[-1]
        await eventually(lambda: not files_of_tenants._now.is_set())
        assert tenancy.book is before


@needs_server
async def test_two_gateways_share_a_tenants_quotas(tmp_path: Path) -> None:
    options = files(tmp_path, "[tenants.alice]\nrequests_per_s = 0.1\nburst_s = 20")
    async with RedisServer() as server, cluster(2, server.url, prefill=1, decode=1, **options) as c:
        first, second = (member.running.url for member in c.members)
        statuses = [(await ask(c.world, ALICE, url=url)).status for url in (first, second, first, second)]
        assert statuses == [200, 200, 429, 429]


@needs_server
async def test_without_the_server_each_gateway_counts_for_itself(tmp_path: Path) -> None:
    options = files(tmp_path, "[tenants.alice]\nrequests_per_s = 0.1\nburst_s = 10")
    async with RedisServer() as server, cluster(2, server.url, prefill=1, decode=1, **options) as c:
        await server.kill()
        statuses = [
            (await ask(c.world, ALICE, url=member.running.url)).status for member in c.members for _ in range(2)
        ]
        assert statuses == [200, 429, 200, 429]


@needs_server
async def test_what_one_gateway_settles_the_other_knows(tmp_path: Path) -> None:
    options = files(tmp_path, "[tenants.alice]\ntokens_per_min = 6\nburst_s = 600")
    async with RedisServer() as server, cluster(2, server.url, prefill=1, decode=1, **options) as c:
        reply = await ask(c.world, ALICE)
        assert reply.json["usage"]["total_tokens"] > 60
        await c.settled()
        over = await ask(c.world, ALICE, url=c.members[1].running.url)
        assert over.status == 429
