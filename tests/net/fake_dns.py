"""A name server of one process: answers A, AAAA and SRV questions over UDP from a table.

Rule of this room: trouble comes when a test says so.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset


class FakeDns(asyncio.DatagramProtocol):
    """records: texts by (name, kind). ttl_s: of all of them. silent: answers nothing. rcode: instead of an answer.

    asked: how often, by (name, kind).
    """

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self.ttl_s = 60
        self.silent = False
        self.rcode: dns.rcode.Rcode | None = None
        self.asked: Counter[tuple[str, str]] = Counter()
        self.address = ""
        self._transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        question = dns.message.from_wire(data)
        [asked] = question.question
        name, kind = str(asked.name).rstrip("."), dns.rdatatype.to_text(asked.rdtype)
        self.asked[name, kind] += 1
        if self.silent:
            return
        answer = dns.message.make_response(question)
        answer.flags |= dns.flags.RA
        if self.rcode is not None:
            answer.set_rcode(self.rcode)
        elif found := self.records.get((name, kind)):
            answer.answer.append(dns.rrset.from_text_list(asked.name, self.ttl_s, "IN", kind, found))
        elif not any(known == name for known, _ in self.records):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        self._transport.sendto(answer.to_wire(), addr)


@asynccontextmanager
async def fake_dns() -> AsyncIterator[FakeDns]:
    """One that listens on a port of loopback."""
    transport, server = await asyncio.get_running_loop().create_datagram_endpoint(FakeDns, ("127.0.0.1", 0))
    host, port = transport.get_extra_info("sockname")[:2]
    server.address = f"{host}:{port}"
    try:
        yield server
    finally:
        transport.close()
