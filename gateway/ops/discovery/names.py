"""Pods behind DNS names: every address of a headless service, or every target of an SRV record.

Rule of this room: asked again when an answer is no longer good (its TTL) or `interval_s` is over, whichever is first.
Of a name that has addresses of both kinds only the IPv4 ones count: they are the same pods.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from gateway.core.settling import Found
from gateway.ops.checks import server_of
from gateway.ops.discovery.plan import DiscoveryPlan, DnsName

if TYPE_CHECKING:
    from gateway.ops.discovery.keeper import Ear

SOONEST_S = 1.0
"""Between two questions, however short the TTL."""

LONGEST_S = 5.0
"""For one answer."""


class NameFault(Exception):
    """A name could not be resolved; why, in words."""


_NO_SUCH_NAME = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))

Hosts = tuple[list[tuple[str, int]], float]
"""(host, port) of every pod, and for how many seconds that is good."""

Resolve = Callable[[DnsName], Awaitable[Hosts]]


class DnsSource:
    """One name. resolve: raises NameFault when there was no answer; an empty one is an answer."""

    sure_of_absence = False

    def __init__(self, name: DnsName, resolve: Resolve, interval_s: float) -> None:
        self.name = name.url
        self._dns = name
        self._resolve = resolve
        self._interval_s = interval_s
        self._now = asyncio.Event()

    async def run(self, ear: Ear) -> None:
        """Ask for ever."""
        while True:
            wait_s = self._interval_s
            try:
                hosts, good_s = await self._resolve(self._dns)
            except NameFault as fault:
                ear.failed(str(fault))
            else:
                if not hosts:
                    ear.remark("nothing behind that name")
                ear.answer(self._found(hosts))
                wait_s = min(wait_s, max(SOONEST_S, good_s))
            self._now.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._now.wait()
            except TimeoutError:
                continue

    def reload(self) -> None:
        """Ask now."""
        self._now.set()

    def _found(self, hosts: Iterable[tuple[str, int]]) -> list[Found]:
        return [Found(_url(self._dns.scheme, host, port), self._dns.role) for host, port in hosts]


def resolver(plan: DiscoveryPlan) -> Resolve:
    """The system's resolver for addresses, where that is enough; else dnspython. Raises ImportError without it."""
    if plan.nameserver is None and all(name.kind == "dns" for name in plan.names):
        return by_system
    return WithRecords(plan.nameserver).resolve


async def _getaddrinfo(host: str, port: int) -> list[tuple[Any, ...]]:
    return list(await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM))


async def by_system(name: DnsName) -> Hosts:
    """A and AAAA, as every program of the machine resolves them; they tell no TTL."""
    try:
        async with asyncio.timeout(LONGEST_S):
            answers = await _getaddrinfo(name.host, name.port)
    except TimeoutError:
        raise NameFault(f"no answer within {LONGEST_S:g} s") from None
    except socket.gaierror as error:
        if error.errno in _NO_SUCH_NAME:
            return [], math.inf
        raise NameFault(str(error.strerror or error)) from None
    return _of_one_kind([str(address[0]) for _, _, _, _, address in answers], name.port), math.inf


class WithRecords:
    """dnspython's resolver: SRV records, TTLs, a name server of one's own. nameserver: `ADDRESS` or `ADDRESS:PORT`."""

    def __init__(self, nameserver: str | None) -> None:
        from dns.asyncresolver import Resolver

        self._resolver = Resolver(configure=nameserver is None)
        self._resolver.lifetime = LONGEST_S
        if nameserver is not None:
            address, port = server_of(nameserver)
            self._resolver.nameservers = [address]
            self._resolver.port = port

    async def resolve(self, name: DnsName) -> Hosts:
        """All pods behind a name. Raises NameFault."""
        if name.kind == "srv":
            records, ttl_s = await self._ask(name.host, "SRV")
            hosts = [(str(each.target).rstrip("."), int(each.port)) for each in records]
            return [(host, port) for host, port in hosts if host], ttl_s
        answers = await asyncio.gather(self._ask(name.host, "A"), self._ask(name.host, "AAAA"))
        addresses = [str(each.address) for records, _ in answers for each in records]
        return _of_one_kind(addresses, name.port), min(ttl_s for _, ttl_s in answers)

    async def _ask(self, host: str, kind: str) -> tuple[list[Any], float]:
        """The records of a kind, and their TTL; none where there is no such name or it has none of them."""
        from dns.exception import DNSException
        from dns.resolver import NXDOMAIN

        try:
            answer = await self._resolver.resolve(host, kind, raise_on_no_answer=False)
        except NXDOMAIN:
            return [], math.inf
        except (DNSException, OSError) as error:
            raise NameFault(f"{kind}: {type(error).__name__}") from None
        return ([], math.inf) if answer.rrset is None else (list(answer.rrset), float(answer.rrset.ttl))


def _of_one_kind(addresses: Iterable[str], port: int) -> list[tuple[str, int]]:
    """Sorted, each once, IPv4 rather than IPv6."""
    found = sorted(map(ipaddress.ip_address, set(addresses)), key=lambda each: (each.version, int(each)))
    return [(str(each), port) for each in found if each.version == found[0].version]


def _url(scheme: str, host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host.lower()
    return f"{scheme}://{shown}" if port == {"http": 80, "https": 443}[scheme] else f"{scheme}://{shown}:{port}"
