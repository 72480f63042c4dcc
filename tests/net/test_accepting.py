"""Many clients that come at once."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.net.connection import Connection
from gateway.net.exchange import Incoming, Outgoing
from gateway.net.server import HttpServer

CLIENTS = 150


async def refuse(_: Incoming, __: Outgoing) -> None:
    raise AssertionError("nobody asks")


def knock(port: int) -> socket.socket:
    client = socket.socket()
    client.setblocking(False)
    client.connect_ex(("127.0.0.1", port))
    return client


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[HttpServer, int]]:
    """A server that leaves no task behind, and its port."""
    before = asyncio.all_tasks()
    server = HttpServer(refuse)
    async with asyncio.timeout(10):
        port = await server.start("127.0.0.1", 0)
        try:
            yield server, port
        finally:
            await server.stop()
    assert server.connections == 0
    assert asyncio.all_tasks() == before


async def test_clients_that_come_at_once_are_taken_in_within_a_few_turns_of_the_loop() -> None:
    async with listening() as (server, port):
        clients = [knock(port) for _ in range(CLIENTS)]
        turns = 0
        while server.connections < CLIENTS and turns < CLIENTS:
            await asyncio.sleep(0)
            turns += 1
        for client in clients:
            client.close()
        assert turns < CLIENTS / 5


async def test_those_who_hung_up_before_they_were_taken_in_leave_nothing() -> None:
    async with listening() as (server, port):
        for _ in range(20):
            knock(port).close()
        with knock(port):
            while server.connections != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        while server.connections:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_connection_that_is_gone_is_not_held_until_its_limit_would_have_ended_it() -> None:
    gc.collect()
    gc.disable()  # it must not be needed
    try:
        async with listening() as (server, port):
            with knock(port):
                while server.connections != 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            while server.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            assert [each for each in gc.get_objects() if type(each) is Connection] == []
    finally:
        gc.enable()


async def test_a_server_that_stops_takes_in_nobody_any_more() -> None:
    async with listening() as (server, port):
        clients = [knock(port) for _ in range(CLIENTS)]
        while not server.connections:  # noqa: ASYNC110
            await asyncio.sleep(0)
    for client in clients:
        client.close()
