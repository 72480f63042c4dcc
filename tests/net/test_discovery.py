"""Discovery brings pods into a gateway that runs, and takes them out again, while clients talk to it."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.core.pods import Role
from gateway.net.roster import ADMIN
from gateway.ops.config import load
from gateway.ops.discovery.keeper import Discovery
from gateway.ops.discovery.kubernetes import KubernetesSource
from gateway.ops.discovery.names import Hosts
from gateway.ops.discovery.plan import DnsName
from gateway.ops.layers import ConfigError
from gateway.ops.serve import running
from loadtest.pod.simulated import SimulatedPod
from tests.net.fake_dns import fake_dns
from tests.net.fake_kubernetes import NAMESPACE, TOKEN, FakeKubernetes, fake_kubernetes, kube_pod
from tests.net.leftovers import clean_world
from tests.net.world import LONG, Watcher, World, assistant, user

HOLD_S = 0.3


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KubernetesSource, "back_off_s", (0.01,))


@asynccontextmanager
async def in_kubernetes(folder: Path, **flags: Any) -> AsyncIterator[tuple[World, FakeKubernetes]]:
    """A gateway without pods that watches a fake API."""
    (folder / "token").write_text(TOKEN, encoding="utf-8")
    async with fake_kubernetes() as fake:
        settings: dict[str, Any] = {
            "kubernetes.selector": "app=vllm",
            "kubernetes.namespace": NAMESPACE,
            "kubernetes.api": fake.url,
            "kubernetes.token_file": str(folder / "token"),
            "discovery.hold_s": HOLD_S,
            **flags,
        }
        async with clean_world(prefill=0, decode=0, **settings) as w:
            yield w, fake


async def deployed(w: World, fake: FakeKubernetes, name: str, role: str, **options: Any) -> SimulatedPod:
    """A pod that starts and becomes ready."""
    pod = await w.add(role, **options)
    fake.put(kube_pod(name, pod.port, role, ready=False))
    fake.set_ready(name, True)
    await w.watcher.until(lambda: bool(w.watcher.pods.get(pod.url)))
    return pod


def discovery(w: World) -> Discovery:
    return w.running.discovery


def shown(w: World) -> dict[str, tuple[str, bool]]:
    """Role and draining of every pod."""
    return {pod.url: (pod.role.value, pod.draining) for pod in w.gateway.parts.fleet}


async def until(condition: Callable[[], bool]) -> None:
    """For what no observer is told of."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_pods_of_a_cluster_come_and_go_while_clients_talk(tmp_path: Path) -> None:
    async with in_kubernetes(tmp_path) as (w, fake):
        assert (await w.get("/ready")).status == 503
        pods = {"p0": await deployed(w, fake, "p0", "prefill"), "d0": await deployed(w, fake, "d0", "decode")}
        assert (await w.get("/ready")).status == 200
        stop = False

        async def talk(name: int) -> None:
            turns = [user(f"{name} {LONG}")]
            while not stop:
                reply = await w.chat(turns)
                assert reply.status == 200, reply.body
                turns = [*turns, assistant(reply.text), user(f"go on {len(turns)}")][:12]

        talking = [asyncio.ensure_future(talk(name)) for name in range(4)]
        for number in range(1, 4):
            fake.drop()
            for kind, role in (("p", "prefill"), ("d", "decode")):
                pods[f"{kind}{number}"] = await deployed(w, fake, f"{kind}{number}", role)
            count = len(w.watcher.records)
            await w.watcher.until(lambda count=count: len(w.watcher.records) > count + 8)  # type: ignore[misc]
            for kind in "pd":
                name = f"{kind}{number - 1}"
                fake.terminate(name)
                url = pods[name].url
                await w.watcher.until(lambda url=url: any(gone == url for gone, _ in w.watcher.removed))  # type: ignore[misc]
                fake.delete(name)
                await w.kill(pods[name])
            fake.compact()
        stop = True
        await asyncio.gather(*talking)
        assert {record.outcome for record in w.watcher.records if record.route} == {"ok"}
        assert {record.attempts for record in w.watcher.records if record.route} == {1}
        assert shown(w) == {pods["p3"].url: ("prefill", False), pods["d3"].url: ("decode", False)}


async def test_a_pod_that_is_not_ready_gets_nothing_new(tmp_path: Path) -> None:
    async with in_kubernetes(tmp_path) as (w, fake):
        await deployed(w, fake, "p", "prefill")
        first, second = await deployed(w, fake, "d0", "decode"), await deployed(w, fake, "d1", "decode")
        fake.set_ready("d0", False)
        await until(lambda: shown(w)[first.url][1])
        for number in range(6):
            assert (await w.chat([user(f"{number} {LONG}")])).status == 200
        assert {record.answering for record in w.watcher.records} == {second.url}
        residency = w.gateway.parts.residency.cache(next(iter(w.gateway.parts.fleet.of(Role.DECODE))))
        fake.set_ready("d0", True)
        await until(lambda: not shown(w)[first.url][1])
        assert w.gateway.parts.residency.cache(next(iter(w.gateway.parts.fleet.of(Role.DECODE)))) is residency


async def test_pods_that_all_seem_unready_stay_for_a_while(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with in_kubernetes(tmp_path) as (w, fake):
        pods = [await deployed(w, fake, f"d{number}", "decode") for number in range(2)]
        fake.set_ready("d0", False)
        await until(lambda: shown(w)[pods[0].url][1])
        fake.set_ready("d1", False)
        await until(lambda: "2 of 2 pods would be lost; they stay unless that lasts" in caplog.text)
        assert (await w.chat([user()])).status == 200
        await until(lambda: all(draining for _, draining in shown(w).values()))
        assert {pod.url for pod in pods} == set(shown(w))


async def test_the_gateway_starts_with_the_pods_there_are(tmp_path: Path) -> None:
    """And so with its conversations: what is in the state file is looked up by pod."""
    async with in_kubernetes(tmp_path, state_file=str(tmp_path / "state")) as (w, fake):
        for name, role in (("p", "prefill"), ("d0", "decode"), ("d1", "decode")):
            await deployed(w, fake, name, role)
        reply = await w.chat([user()])
        home = w.watcher.records[0].answering
        await w.settled()
        await w.running.keeping.snapshots.save()  # type: ignore[union-attr]
        watcher = Watcher()
        async with running(load(None, {}, w.settings), watcher) as again:
            await watcher.until(lambda: sum(watcher.pods.values()) == 3)
            turns = [user(), assistant(reply.text), user("go on")]
            body = {"model": "sim", "messages": turns, "max_tokens": 8}
            assert (await w.post("/v1/chat/completions", body, url=again.url)).status == 200
            await watcher.until(lambda: len(watcher.records) == 1)
            record = watcher.records[0]
            assert (record.turn, record.route, record.answering) == (2, "local", home)


async def test_an_api_that_fails_changes_nothing_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with in_kubernetes(tmp_path) as (w, fake):
        pod = await deployed(w, fake, "d0", "decode")
        fake.token = "another"
        fake.finish()
        await until(lambda: discovery(w).states[0].trouble is not None)
        await fake.until(lambda: fake.tokens.count(TOKEN) >= 4)
        assert set(shown(w)) == {pod.url}
        [state] = discovery(w).states
        assert (state.name, state.pods) == ("kubernetes", 1)
        assert state.answered_s is not None
        assert "said 401" in (state.trouble or "")
        (tmp_path / "token").write_text("another", encoding="utf-8")
        await until(lambda: discovery(w).states[0].trouble is None)
        said = [record.message for record in caplog.records if record.message.startswith("discovery")]
        assert len(said) == 2
        assert said[0].endswith("the 1 pods known stay")
        assert said[1] == "discovery kubernetes: it answers again"
        assert TOKEN not in caplog.text


async def test_names_are_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_dns() as server:
        server.ttl_s = 0
        settings: dict[str, Any] = {
            "discovery.nameserver": server.address,
            "discovery.interval_s": 0.02,
            "discovery.hold_s": HOLD_S,
            "discovery.max_loss": 0.7,
        }
        names = {"decode": ["srv+http://_vllm._tcp.decode.ns"]}
        async with clean_world(prefill=0, decode=0, elsewhere=names, **settings) as w:
            assert shown(w) == {}
            pods = [await w.add("decode") for _ in range(3)]
            records = [f"0 0 {pod.port} localhost." for pod in pods]
            urls = [f"http://localhost:{pod.port}" for pod in pods]
            name = ("_vllm._tcp.decode.ns", "SRV")
            server.records[name] = records
            discovery(w).reload()
            await until(lambda: set(shown(w)) == set(urls))
            await w.watcher.until(lambda: sum(w.watcher.pods.values()) == 3)
            assert (await w.chat([user()])).status == 200
            server.records[name] = records[1:]
            asked = server.asked[name]
            discovery(w).reload()
            await until(lambda: server.asked[name] > asked)
            assert set(shown(w)) == set(urls), "missing in one answer is not gone"
            discovery(w).reload()
            await until(lambda: set(shown(w)) == set(urls[1:]))
            server.silent = True
            discovery(w).reload()
            assert set(shown(w)) == set(urls[1:])


async def test_other_names_after_a_reload(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(name: DnsName) -> Hosts:
        return [("127.0.0.1", name.port)], math.inf

    monkeypatch.setattr("gateway.ops.discovery.names.resolver", lambda plan: resolve)
    async with clean_world(prefill=1, decode=0, elsewhere={"decode": ["dns+http://old.ns:1"]}) as w:
        first, second = await w.add("decode"), await w.add("decode")
        old, new = (DnsName(Role.DECODE, f"dns+http://a.ns:{pod.port}") for pod in (first, second))
        discovery(w).take_names((old,))
        await w.watcher.until(lambda: w.watcher.pods.get(first.url) is True)
        discovery(w).take_names((new,))
        await w.watcher.until(lambda: w.watcher.pods.get(second.url) is True)
        await w.watcher.until(lambda: any(url == first.url for url, _ in w.watcher.removed))
        assert [state.name for state in discovery(w).states] == [new.url]
        assert w.running.roster.of(new.url) == {second.url: Role.DECODE}


async def test_a_file_is_obeyed_after_sighup(tmp_path: Path) -> None:
    path = tmp_path / "pods.json"
    path.write_text("[]", encoding="utf-8")
    flags: dict[str, Any] = {"discovery.file": str(path), "discovery.hold_s": HOLD_S}
    async with clean_world(prefill=1, decode=1, **flags) as w:
        pod = await w.add("replica")
        path.write_text(json.dumps([{"url": pod.url, "role": "replica"}]), encoding="utf-8")
        w.running.reload()
        await w.watcher.until(lambda: bool(w.watcher.pods.get(pod.url)))
        path.write_text(json.dumps([{"url": pod.url, "role": "replica", "drain": True}]), encoding="utf-8")
        w.running.reload()
        await until(lambda: shown(w)[pod.url] == ("replica", True))
        path.write_text("[]", encoding="utf-8")
        w.running.reload()
        await w.watcher.until(lambda: w.watcher.removed == [(pod.url, f"file:{path} let go of it")])


async def test_a_pod_of_the_configuration_outlives_its_discovery(tmp_path: Path) -> None:
    async with in_kubernetes(tmp_path) as (w, fake):
        pod = await deployed(w, fake, "d0", "decode")
        w.running.roster.add(pod.url, Role.DECODE, source=ADMIN)
        fake.terminate("d0")
        await until(lambda: w.running.roster.sources(pod.url) == (ADMIN,))
        assert shown(w) == {pod.url: ("decode", False)}
        w.running.roster.remove(pod.url, source=ADMIN)
        await w.running.roster.left(pod.url)


async def test_two_that_differ_in_a_pods_role_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with in_kubernetes(tmp_path) as (w, fake):
        pod = await w.add("decode")
        w.running.roster.add(pod.url, Role.DECODE, source=ADMIN)
        fake.put(kube_pod("d0", pod.port, "replica"))
        await until(lambda: w.running.roster.sources(pod.url) == (ADMIN, "kubernetes"))
        assert shown(w) == {pod.url: ("decode", False)}
        assert f"{pod.url} is a replica pod here, but admin had it first, as decode" in caplog.text


async def test_a_silent_source_does_not_keep_the_gateway_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Discovery, "first_s", 0.05)
    async with fake_kubernetes() as fake:
        fake.hold_lists.clear()
        fake.token = None
        flags = {"kubernetes.selector": "a=b", "kubernetes.namespace": NAMESPACE, "kubernetes.api": fake.url}
        async with clean_world(prefill=0, decode=1, **flags) as w:
            assert (await w.chat([user()])).status == 200
            assert "discovery kubernetes: no answer within 0.05 s; starting without it" in caplog.text


async def test_without_any_pod_nor_discovery_nothing_is_started() -> None:
    with pytest.raises(ConfigError, match="at least one decode pod"):
        async with clean_world(prefill=0, decode=0):
            pass
