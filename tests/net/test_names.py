"""Pods behind DNS names: what is made of answers, and of none."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Iterable

import dns.rcode
import pytest

from gateway.core.pods import Role
from gateway.core.settling import Found
from gateway.ops.discovery import names
from gateway.ops.discovery.names import DnsSource, Hosts, NameFault, WithRecords, by_system, resolver
from gateway.ops.discovery.plan import DiscoveryPlan, DnsName
from tests.net.fake_dns import fake_dns

HEADLESS = DnsName(Role.DECODE, "dns+http://decode.ns.svc:8000")
RECORDS = DnsName(Role.PREFILL, "srv+http://_vllm._tcp.prefill.ns.svc")


async def test_every_address_of_a_name_is_a_pod() -> None:
    async with fake_dns() as server:
        server.records["decode.ns.svc", "A"] = ["10.0.0.9", "10.0.0.10"]
        found = await WithRecords(server.address).resolve(HEADLESS)
        assert found == ([("10.0.0.9", 8000), ("10.0.0.10", 8000)], 60)


async def test_ipv6_addresses_count_where_there_are_no_others() -> None:
    async with fake_dns() as server:
        server.records["decode.ns.svc", "AAAA"] = ["fd00::2"]
        assert (await WithRecords(server.address).resolve(HEADLESS))[0] == [("fd00::2", 8000)]
        server.records["decode.ns.svc", "A"] = ["10.0.0.2"]
        assert (await WithRecords(server.address).resolve(HEADLESS))[0] == [("10.0.0.2", 8000)]


async def test_an_srv_record_says_host_and_port() -> None:
    async with fake_dns() as server:
        server.ttl_s = 7
        server.records["_vllm._tcp.prefill.ns.svc", "SRV"] = ["0 10 8100 p-0.prefill.ns.svc.", "0 10 8200 p-1.prefill."]
        hosts, good_s = await WithRecords(server.address).resolve(RECORDS)
        assert sorted(hosts) == [("p-0.prefill.ns.svc", 8100), ("p-1.prefill", 8200)]
        assert good_s == 7


async def test_no_such_name_and_no_records_are_empty_answers() -> None:
    async with fake_dns() as server:
        resolve = WithRecords(server.address).resolve
        assert await resolve(HEADLESS) == ([], math.inf)
        server.records["decode.ns.svc", "TXT"] = ["hello"]
        assert await resolve(HEADLESS) == ([], math.inf)
        assert await resolve(RECORDS) == ([], math.inf)


@pytest.mark.parametrize("rcode", [dns.rcode.SERVFAIL, dns.rcode.REFUSED])
async def test_a_server_in_trouble_is_no_answer(rcode: dns.rcode.Rcode) -> None:
    async with fake_dns() as server:
        server.rcode = rcode
        with pytest.raises(NameFault, match="SRV: NoNameservers"):
            await WithRecords(server.address).resolve(RECORDS)


async def test_a_silent_server_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "LONGEST_S", 0.05)
    async with fake_dns() as server:
        server.silent = True
        with pytest.raises(NameFault, match="SRV: LifetimeTimeout"):
            await WithRecords(server.address).resolve(RECORDS)
        assert server.asked["_vllm._tcp.prefill.ns.svc", "SRV"] >= 1


async def test_the_system_resolves_addresses() -> None:
    hosts, good_s = await by_system(DnsName(Role.DECODE, "dns+http://localhost:8000"))
    assert hosts == [("127.0.0.1", 8000)]
    assert good_s == math.inf


@pytest.mark.parametrize("number", [socket.EAI_NONAME, socket.EAI_AGAIN])
async def test_no_such_name_is_an_answer_and_no_resolver_is_none(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    async def getaddrinfo(*_: object, **__: object) -> list[object]:
        raise socket.gaierror(number, "it says so")

    monkeypatch.setattr(names, "_getaddrinfo", getaddrinfo)
    if number == socket.EAI_NONAME:
        assert await by_system(HEADLESS) == ([], math.inf)
    else:
        with pytest.raises(NameFault, match="it says so"):
            await by_system(HEADLESS)


def test_the_system_is_enough_for_addresses() -> None:
    assert resolver(DiscoveryPlan((HEADLESS,))) is by_system
    for plan in (DiscoveryPlan((HEADLESS, RECORDS), "10.0.0.1"), DiscoveryPlan((HEADLESS,), "[fd00::1]:5353")):
        assert resolver(plan) is not by_system


class Script:
    """Resolves by a list of answers; the last one stays. Says when it is asked."""

    def __init__(self, *answers: Hosts | str) -> None:
        self.answers = list(answers)
        self.asked = 0
        self._changed = asyncio.Event()

    async def __call__(self, name: DnsName) -> Hosts:
        self.asked += 1
        self._changed.set()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, str):
            raise NameFault(answer)
        return answer

    async def until(self, count: int) -> None:
        async with asyncio.timeout(30):
            while self.asked < count:
                self._changed.clear()
                await self._changed.wait()


class Ear:
    def __init__(self) -> None:
        self.heard: list[object] = []

    def answer(self, found: Iterable[Found]) -> None:
        self.heard.append([each.url for each in found])

    def failed(self, why: str) -> None:
        self.heard.append(why)

    def remark(self, text: str) -> None:
        self.heard.append(text)


async def heard_by(source: DnsSource, script: Script, asked: int) -> list[object]:
    ear = Ear()
    task = asyncio.ensure_future(source.run(ear))
    await script.until(asked)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return ear.heard


async def test_a_name_is_asked_again_after_the_interval_and_failures_are_told() -> None:
    script = Script(([("10.0.0.1", 8000)], math.inf), "no answer", ([("fd00::1", 80), ("Host.Name", 443)], 60))
    heard = await heard_by(DnsSource(HEADLESS, script, 0.01), script, 4)
    assert heard[:3] == [["http://10.0.0.1:8000"], "no answer", ["http://[fd00::1]", "http://host.name:443"]]


async def test_an_empty_answer_is_told_with_a_remark() -> None:
    script = Script(([], math.inf))
    assert (await heard_by(DnsSource(HEADLESS, script, 0.01), script, 2))[:2] == ["nothing behind that name", []]


async def test_a_ttl_shortens_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "SOONEST_S", 0.01)
    script = Script(([("10.0.0.1", 8000)], 0.0))
    assert len(await heard_by(DnsSource(HEADLESS, script, 3600), script, 3)) >= 2


async def test_a_reload_asks_now() -> None:
    script = Script(([("10.0.0.1", 8000)], math.inf))
    source, ear = DnsSource(HEADLESS, script, 3600), Ear()
    task = asyncio.ensure_future(source.run(ear))
    await script.until(1)
    await asyncio.sleep(0)
    source.reload()
    await script.until(2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
