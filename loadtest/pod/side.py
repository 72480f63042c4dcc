"""The side channel between simulator processes: what NIXL's handshake, reads and notifications are between real pods.

Rule of this room: no KV bytes travel; the time they would take is waited out on the reader's link and the digests
of what lies in the source's blocks come back. Everything a real reader would not notice (an expired lease, blocks
that hold something else by now) is not an error here either
(vllm/distributed/kv_transfer/kv_connector/v1/nixl/pull_worker.py).
"""

import logging
from typing import Any

import aiohttp
from aiohttp import web

from loadtest.engine.kv_connector import UNKNOWN_BLOCKS
from loadtest.engine.request import KvSource, PullOrder
from loadtest.pod.state import PodState, Transfer

log = logging.getLogger(__name__)
EXPIRY_MARGIN_S = 5.0
"""A readback this close to its expiry is declined (`_KV_BLOCKS_EXPIRY_SAFETY_MARGIN`)."""


class SideClient:
    """The reading end: carries out the engine's orders against the pods named in them."""

    def __init__(self, state: PodState, session: aiohttp.ClientSession, *, handshake_timeout_s: float = 0.0) -> None:
        self._state = state
        self._session = session
        self._handshake_timeout_s = handshake_timeout_s
        self._known: dict[str, str] = {}
        """Address of each engine met so far. Like NIXL's agents it is found once and then kept, whatever later
        parameters say."""

    async def pull(self, order: PullOrder) -> tuple[int, ...] | None:
        """Read blocks (or only say that nothing is needed). None: the read failed."""
        if not order.awaited:
            lent = order.source.block_ids is UNKNOWN_BLOCKS
            await self._post(order.source, "release", {"request_id": order.source.request_id, "lent": lent})
            return None
        running = self._state.running
        begin = running.now()
        digests, link = None, self._state.links.to(order.source.engine_id)
        if order.source.block_ids is UNKNOWN_BLOCKS:
            digests = await self._read(order)
            begin = running.now()
            await running.wait_until(link.send(begin, order.num_bytes))
        elif not self._declined(order.source):
            await running.wait_until(link.send(begin, order.num_bytes))
            digests = await self._read(order)
        ok = digests is not None
        self._state.transfers.append(
            Transfer(
                request_id=order.request_id,
                remote_engine_id=order.source.engine_id,
                num_blocks=len(order.block_ids),
                num_bytes=order.num_bytes if ok else 0,
                duration_s=running.now() - begin,
                ok=ok,
            )
        )
        return digests

    def _declined(self, source: KvSource) -> bool:
        return source.expires_s is not None and self._state.running.now() + EXPIRY_MARGIN_S >= source.expires_s

    async def _read(self, order: PullOrder) -> tuple[int, ...] | None:
        answer = await self._post(
            order.source,
            "take" if order.source.block_ids is UNKNOWN_BLOCKS else "pull",
            {
                "request_id": order.source.request_id,
                "block_ids": order.block_ids,
                "counts": order.counts,
                "block_size": self._state.block_size,
            },
        )
        return None if answer is None else tuple(answer["digests"])

    async def keep_alive(self, source: KvSource, lease_s: float) -> None:
        """Renew a lease, every sixth of its time, until cancelled (`_send_heartbeats`)."""
        while True:
            await self._state.running.wait_until(self._state.running.now() + lease_s / 6)
            await self._post(source, "heartbeat", {"request_id": source.request_id})

    async def _post(self, source: KvSource, what: str, body: dict[str, Any]) -> dict[str, Any] | None:
        known = self._known.get(source.engine_id)
        address = known or f"http://{source.host}:{source.port}"
        try:
            async with self._session.post(
                f"{address}/sim/{what}", json={"engine_id": source.engine_id, **body}
            ) as answer:
                if answer.status == 200:
                    self._known[source.engine_id] = address
                    found: dict[str, Any] = await answer.json()
                    return found
                log.warning("%s of %s refused: %s", what, source.request_id, (await answer.text())[:200])
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            log.warning("%s of %s failed: %r", what, source.request_id, error)
            if known is None:
                now = self._state.running.now()
                await self._state.running.wait_until(now + self._handshake_timeout_s)
        return None


class SideServer:
    """The lending end."""

    def __init__(self, state: PodState) -> None:
        self._state = state

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/query", self.query),
            web.post("/sim/take", self.take),
            web.post("/sim/pull", self.pull),
            web.post("/sim/release", self.release),
            web.post("/sim/heartbeat", self.heartbeat),
        ]

    async def query(self, _: web.Request) -> web.Response:
        """What Mooncake's bootstrap server says; here it listens on the pod's own port."""
        return web.json_response({"0": {"engine_id": self._state.engine_id, "worker_addr": {"0": {"0": "tcp://"}}}})

    async def take(self, request: web.Request) -> web.Response:
        """As `pull`, of what a transfer id stands for; waits until it stands for something."""
        body = await request.json()
        connector, transfer_id = self._state.running.engine.connector, body["request_id"]
        if connector is None or body["engine_id"] != self._state.engine_id:
            return web.json_response({"problem": f"unknown engine id {body['engine_id']}"}, status=409)
        while transfer_id not in connector.lent:
            await self._state.pulse.wait()
        counts, (blocks, filled_s) = tuple(body["counts"]), connector.lent.pop(transfer_id)
        await self._state.running.wait_until(filled_s)
        digests = connector.read(blocks[-len(counts) :], counts)
        connector.leases.release(transfer_id)
        self._state.running.changed()
        return web.json_response({"digests": digests})

    async def pull(self, request: web.Request) -> web.Response:
        """Digests of the blocks, and the reader is done with them (a read and its notification)."""
        body = await request.json()
        connector = self._state.running.engine.connector
        if connector is None or body["engine_id"] != self._state.engine_id:
            return web.json_response({"problem": f"unknown engine id {body['engine_id']}"}, status=409)
        if body["block_size"] != self._state.block_size:
            return web.json_response({"problem": "incompatible block size"}, status=409)
        known = body["request_id"] in connector.leases
        digests = connector.read(tuple(body["block_ids"]), tuple(body["counts"]))
        connector.leases.release(body["request_id"])
        self._state.running.changed()
        return web.json_response({"digests": digests, "lease": "ok" if known else "expired or already read"})

    async def release(self, request: web.Request) -> web.Response:
        body = await request.json()
        connector = self._state.running.engine.connector
        if connector is None or body["engine_id"] != self._state.engine_id:
            return web.json_response({"problem": f"unknown engine id {body['engine_id']}"}, status=409)
        connector.lent.pop(body["request_id"], None)
        freed = connector.leases.release(body["request_id"])
        if not freed and body.get("lent"):
            connector.unwanted.add(body["request_id"])
        self._state.running.changed()
        return web.json_response({"freed": freed})

    async def heartbeat(self, request: web.Request) -> web.Response:
        body = await request.json()
        connector = self._state.running.engine.connector
        renewed = connector is not None and connector.leases.renew(body["request_id"], self._state.running.now())
        return web.json_response({"renewed": renewed})
