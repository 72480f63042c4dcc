"""Faults a test can order.

Rule of this room: a fault is data, used up by the requests it strikes (`times`), and says nothing about how it is
carried out. `POST /sim/fault {"kind": "refuse_5xx", "status": 503, "times": 1}`.
"""

import asyncio
from enum import StrEnum

import msgspec


class Kind(StrEnum):
    REFUSE_5XX = "refuse_5xx"
    """Answer `status` with an error body."""
    HANG_BEFORE_HEADERS = "hang_before_headers"
    """Take the request, never answer."""
    RESET_BEFORE_HEADERS = "reset_before_headers"
    """Take the request, reset the connection."""
    RESET_AFTER_EVENTS = "reset_after_events"
    """Reset the connection after `events` events of the stream (of a plain answer: half-way through its body)."""
    STALL_AFTER_EVENTS = "stall_after_events"
    """Send `events` events, then nothing more, with the connection open."""
    SLOW_HEADERS = "slow_headers"
    """Wait `seconds` before anything else."""
    HOLD = "hold"
    """Wait until the faults are cleared, before anything else or after `events` events of a stream; then go on."""
    DROP_KV_PARAMS = "drop_kv_params"
    """Answer without `kv_transfer_params`; the blocks stay pinned until the lease runs out."""
    ONE_BYTE_WRITES = "one_byte_writes"
    """Write the body byte by byte."""
    FINISH_ERROR = "finish_error"
    """The engine ends the request with an error, after `events` events of a stream."""
    CLOSE_WITHOUT_RESPONSE = "close_without_response"
    """Take the request, close the connection properly."""
    MALFORMED_HEAD = "malformed_head"
    """Answer with what is no HTTP."""
    RESET_AT_BYTE = "reset_at_byte"
    """Reset the connection after `bytes` bytes of the body."""
    MALFORMED_CHUNK = "malformed_chunk"
    """After `events` events of a stream, a chunk whose length is no number (of a plain answer: instead of its body)."""
    MALFORMED_SSE = "malformed_sse"
    """After `events` events of a stream, one whose data is no JSON (of a plain answer: the body is none)."""
    ENDLESS_BODY = "endless_body"
    """A body that never ends; of a stream: after `events` events, an event that never ends."""


class Fault(msgspec.Struct, forbid_unknown_fields=True):
    """One order. `times` -1 means for ever.

    Without a `path` it strikes the generate endpoints only, so that health probes do not use it up; with one, it
    strikes that endpoint, whichever it is. With `direct` it strikes only prompts that come without KV from another pod,
    which the pod has to compute itself: a decode pod that is bad at prefill, and at nothing else.
    """

    kind: Kind
    times: int = 1
    status: int = 503
    events: int = 0
    bytes: int = 0
    seconds: float = 0.0
    path: str | None = None
    direct: bool = False


class FaultPlan:
    """The faults still to come, oldest first. cleared: set when those are that have struck by now."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self.cleared = asyncio.Event()

    def add(self, fault: Fault) -> None:
        self._faults.append(fault)

    def clear(self) -> None:
        self._faults.clear()
        self.cleared.set()
        self.cleared = asyncio.Event()

    def strike(self, path: str, *, generates: bool = True, direct: bool = True) -> Fault | None:
        """The fault this request meets, if any; it is used up by one. direct: it brings no KV."""
        for fault in self._faults:
            if fault.path != path and not (fault.path is None and generates):
                continue
            if fault.direct and not direct:
                continue
            if fault.times > 0:
                fault.times -= 1
                if fault.times == 0:
                    self._faults.remove(fault)
            return fault
        return None
