"""One request's KV on P, from P's answer until D has it.

Rule of this room: whatever becomes of the request, the ledger of hand-overs hears of it; and where nobody can be
reading the blocks, P is told to free them rather than left to wait for its lease to end.
"""

from __future__ import annotations

import time

import msgspec

from gateway.core.handovers import Waiting
from gateway.core.pods import Pod, Role
from gateway.net.exchange import Incoming
from gateway.net.fault import PodFault
from gateway.net.handover import release
from gateway.net.parts import Parts
from gateway.net.records import RequestRecord


class Lease:
    """One hand-over. Make it when P has answered; then one of `taken`, `rejected`, `passed_on` and `drop`.

    handover: the words by which P frees the blocks, None where there are none.
    """

    _unread = True

    def __init__(
        self, parts: Parts, incoming: Incoming, record: RequestRecord, prefill: Pod, handover: msgspec.Raw | None
    ) -> None:
        self._parts = parts
        self._incoming = incoming
        self._record = record
        self._prefill = prefill
        self._handover = handover
        self._waiting: Waiting | None = parts.handovers.begin(prefill.url, time.monotonic())
        self._process = self._process_now()

    @property
    def stale(self) -> bool:
        """P's process is another one than the one that answered, as far as is known."""
        return self._process != self._process_now()

    def taken(self) -> None:
        """D answered, so it has the blocks."""
        if self._waiting is not None:
            self._parts.handovers.over(self._waiting)
            self._waiting = None

    def rejected(self, pod: Pod) -> None:
        """D refused the request: P must hear of it from D."""
        self._tell(pod)

    def failed(self, fault: PodFault) -> None:
        """D failed. Where it may be reading still, the blocks must stay."""
        self._unread = not fault.reached or fault.word == "status"
        if fault.word == "error_event":
            self.taken()

    def passed_on(self) -> Waiting | None:
        """Someone else goes on with it."""
        waiting, self._waiting = self._waiting, None
        return waiting

    def drop(self) -> None:
        """The request has no more use for it. Harmless when it is over already."""
        if self._waiting is None:
            return
        if self.stale:
            self.taken()
            return
        messenger = next((pod for pod in self._parts.fleet if pod.up and pod.role is Role.DECODE), None)
        if self._unread and messenger is not None and self._prefill.up:
            self._tell(messenger)
            return
        self._parts.handovers.leave(self._waiting)
        self._waiting = None

    def _tell(self, messenger: Pod) -> None:
        waiting = self.passed_on()
        if waiting is None:
            return
        if self._handover is not None:
            self._parts.background(self._release(messenger, waiting, self._handover))
        else:
            self._parts.handovers.leave(waiting)

    async def _release(self, messenger: Pod, waiting: Waiting, handover: msgspec.Raw) -> None:
        try:
            told = await release(self._parts, messenger, self._incoming, self._record, handover)
        except BaseException:
            self._parts.handovers.leave(waiting)
            raise
        (self._parts.handovers.over if told else self._parts.handovers.leave)(waiting)

    def _process_now(self) -> tuple[int, int]:
        return self._prefill.epoch, self._parts.losses.get(self._prefill.url, 0)
