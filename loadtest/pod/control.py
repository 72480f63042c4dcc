"""`/sim/*`: looking into a pod and breaking it, for tests in other processes.

Rule of this room: thin HTTP over the state; `SimulatedPod` offers the same to tests in this process.
"""

import msgspec
from aiohttp import web

from loadtest.pod.faults import Fault
from loadtest.pod.info import answer
from loadtest.pod.state import PodState


class Drop(msgspec.Struct, forbid_unknown_fields=True):
    """Batches of KV events to lose."""

    count: int = 1
    replayable: bool = True


class ControlEndpoints:
    def __init__(self, state: PodState) -> None:
        self._state = state

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/sim/requests", self.requests),
            web.delete("/sim/requests", self.clear_requests),
            web.get("/sim/state", self.state),
            web.get("/sim/transfers", self.transfers),
            web.post("/sim/fault", self.fault),
            web.delete("/sim/fault", self.clear_faults),
            web.post("/sim/reset_prefix_cache", self.reset_prefix_cache),
            web.post("/sim/kv_events/drop", self.drop_kv_events),
            web.post("/reset_prefix_cache", self.dev_reset_prefix_cache),
        ]

    async def requests(self, _: web.Request) -> web.Response:
        records = [msgspec.to_builtins(record, builtin_types=(bytes,)) for record in self._state.journal.records]
        return answer([{key: value for key, value in record.items() if key != "raw"} for record in records])

    async def clear_requests(self, _: web.Request) -> web.Response:
        self._state.journal.records.clear()
        return answer({"ok": True})

    async def state(self, _: web.Request) -> web.Response:
        return answer(self._state.summary())

    async def transfers(self, _: web.Request) -> web.Response:
        return answer([msgspec.to_builtins(transfer) for transfer in self._state.transfers])

    async def fault(self, request: web.Request) -> web.Response:
        try:
            self._state.faults.add(msgspec.json.decode(await request.read(), type=Fault))
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            return answer({"problem": str(error)}, 400)
        return answer({"ok": True})

    async def clear_faults(self, _: web.Request) -> web.Response:
        self._state.faults.clear()
        return answer({"ok": True})

    async def reset_prefix_cache(self, _: web.Request) -> web.Response:
        return answer({"ok": self._state.running.engine.reset_prefix_cache()})

    async def dev_reset_prefix_cache(self, _: web.Request) -> web.Response:
        """As vLLM answers it where `VLLM_SERVER_DEV_MODE` is set (elsewhere: 404; here always there)."""
        return answer({"success": self._state.running.engine.reset_prefix_cache()})

    async def drop_kv_events(self, request: web.Request) -> web.Response:
        """`{"count": 1, "replayable": true}`: the next batches get their sequence numbers and are not sent."""
        if self._state.events is None:
            return answer({"problem": "this pod has no KV events"}, 400)
        try:
            order = msgspec.json.decode(await request.read(), type=Drop)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            return answer({"problem": str(error)}, 400)
        self._state.events.drop(order.count, replayable=order.replayable)
        return answer({"ok": True})
