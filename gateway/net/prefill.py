"""The prefill leg: P computes the prompt, or reads the part of it that lies elsewhere, and keeps the blocks for D.

Rule of this room: a readback that fails costs the readback, not the request.
"""

from __future__ import annotations

import time
from dataclasses import replace

from gateway.core.decide import Plan
from gateway.core.fallback import Leg
from gateway.core.pods import Pod
from gateway.core.policies import Route
from gateway.net import headers as names
from gateway.net.exchange import Incoming
from gateway.net.handover import release
from gateway.net.outcome import Finished, LegFault, PodRejected
from gateway.net.paces import Paces
from gateway.net.parts import Parts
from gateway.net.readback import MIN_TOKENS, PROOF_S, Recall, Recalled, RecallFault
from gateway.net.records import RequestRecord
from gateway.net.tracing import Step, traced
from gateway.net.upstream import PodAnswer, PodFault
from gateway.wire import legs
from gateway.wire.answers import PrefillAnswer, engine_of
from gateway.wire.endpoints import Endpoint
from gateway.wire.fields import Fields
from gateway.wire.handovers import Handover, NixlPull
from gateway.wire.readback import on_ids, with_ids


class PrefillLeg:
    """One request's way through P.

    seat_tokens: what the request counts for in the load of a pod.
    handover: how its blocks get to D. ids: the prompt's, once P has read some of it back: D must take the prompt in the
    same ids.
    """

    def __init__(
        self,
        parts: Parts,
        endpoint: Endpoint,
        incoming: Incoming,
        record: RequestRecord,
        fields: Fields,
        session_id: str | None,
        seat_tokens: int,
    ) -> None:
        self._parts = parts
        self._api = endpoint.api
        self._dialect = endpoint.dialect
        self._incoming = incoming
        self._record = record
        self._fields = fields
        self._session_id = session_id
        self._seat_tokens = seat_tokens
        self.ids: list[int] | None = None
        self.handover: Handover = NixlPull()

    def begin(self, prefill: Pod) -> Handover:
        """Choose how the blocks get from there to D. Raises LegFault where that is not known."""
        try:
            self.handover = self._parts.origins.begin(prefill)
        except PodFault as fault:
            raise LegFault(Leg.PREFILL, fault) from fault
        return self.handover

    async def run(self, prefill: Pod, plan: Plan) -> PrefillAnswer:
        """The prefill leg, with the history read from its holder where the plan says so and that works out."""
        self._record.holder = self._record.readback_tokens = None
        if plan.holder is None:
            return await self._ask(prefill)
        plan.holder.readbacks += 1
        prefill.readbacks += 1
        try:
            return await self._read_back(prefill, plan.holder, plan.resident_tokens)
        finally:
            plan.holder.readbacks -= 1
            prefill.readbacks -= 1

    async def _read_back(self, prefill: Pod, holder: Pod, resident_tokens: int) -> PrefillAnswer:
        recall = Recall(self._parts, self._incoming, self._record, self._api, self._fields, self._session_id)
        try:
            recalled = await recall.fetch(holder, prefill, resident_tokens)
        except RecallFault as none:
            self._parts.observer.fault(f"readback_{none.word}", holder.url, self._record.request_id, str(none))
            return await self._without_readback(prefill, none.word)
        must_read = self._must_read(prefill, recalled)
        try:
            prefilled = await self._ask(prefill, recalled)
        except (LegFault, PodRejected) as failure:
            fault = failure.fault if isinstance(failure, LegFault) else PodFault("status", str(failure.answer.status))
            self._readback_failed(prefill, fault)
            self._give_back(prefill, holder, recalled)
            if fault.process_gone:
                raise
            return await self._without_readback(prefill, fault.word)
        if must_read:
            prefill.reads_back = True
        self._record.holder, self._record.readback_tokens = holder.url, recalled.tokens
        self.ids = recalled.ids
        if prefilled.handover is None:
            return prefilled
        return replace(prefilled, handover=with_ids(prefilled.handover, recalled.ids))

    def _must_read(self, prefill: Pod, recalled: Recalled) -> bool:
        """False when P may have so much of it that it need not read, hence proves nothing by answering."""
        own = self._parts.residency.of(prefill, bytes.fromhex(self._session_id or "")).tokens
        return own + MIN_TOKENS < recalled.tokens

    async def _without_readback(self, prefill: Pod, word: str) -> PrefillAnswer:
        self._record.route = Route.PD
        self._record.reason = f"{self._record.reason}; but no readback ({word})"
        return await self._ask(prefill)

    def _readback_failed(self, prefill: Pod, fault: PodFault) -> None:
        """A P that has never read anything is not asked again."""
        parts, record = self._parts, self._record
        parts.observer.fault(f"readback_{fault.word}", prefill.url, record.request_id, fault.detail)
        if not prefill.reads_back and fault.word == "timeout":
            prefill.reads_back = False
            parts.observer.fault(
                "readback_off", prefill.url, record.request_id, "no readback from now on: is bidirectional_kv_xfer on?"
            )

    def _give_back(self, prefill: Pod, holder: Pod, recalled: Recalled) -> None:
        """Let the holder free what it kept for a readback that did not come about. P brings the word if nobody else
        can."""
        parts = self._parts
        others = [pod for pod in parts.fleet if pod.up and pod is not holder and pod.shares_model(holder)]
        messenger = min(others, key=lambda pod: pod is prefill, default=None)
        if messenger is not None:
            parts.background(release(parts, messenger, self._incoming, self._record, recalled.offer))

    async def _ask(self, pod: Pod, recalled: Recalled | None = None) -> PrefillAnswer:
        limit_s = self._parts.settings.timeouts.prefill_s
        fields = self._fields if recalled is None else on_ids(self._api, self._fields, recalled.ids)
        body = legs.prefill_body(self._api, fields, self._parts.settings.prefill_keep_fields, self.handover.ask)
        if recalled is not None:
            body = legs.with_params(body, recalled.params)
            limit_s = limit_s if pod.reads_back else min(limit_s, PROOF_S)
        began = time.monotonic()
        answer: PodAnswer | None = None
        paces = Paces(self._parts, self._record)
        seat = paces.prefill_seat(pod, self._seat_tokens)
        word: str | None = "cancelled"
        try:
            answer = await self._call(pod, body, limit_s)
            text = await answer.read(max(0.001, limit_s - (time.monotonic() - began)))
            word = None if answer.status == 200 else "status"
        except PodFault as fault:
            word = fault.word
            self._parts.notice(pod, fault)
            raise LegFault(Leg.PREFILL, fault) from fault
        finally:
            seat.leave_unless_kept()
            self._parts.admission.freed()
            if self._record.trace is not None:
                self._record.trace.over(Step.PREFILL, word)
            if answer is not None:
                answer.close()
        if answer.status != 200:
            finished = Finished(answer.status, answer.headers, text)
            if 400 <= answer.status < 500:
                raise PodRejected(finished)
            raise LegFault(Leg.PREFILL, PodFault("status", str(answer.status)), finished)
        prefilled = self._dialect.read_prefill(text)
        handover = self.handover.answered(prefilled)
        if handover is None:
            why = f"no kv_transfer_params (finish_reason {prefilled.finish_reason})"
            raise LegFault(Leg.PREFILL, PodFault("no_handover", why))
        if handover is not prefilled.handover:
            prefilled = replace(prefilled, handover=handover)
        self._parts.met_engine(pod, engine_of(handover))
        self._parts.origins.learn(pod, handover)
        self._parts.praise(pod)
        self._record.prefill_s = time.monotonic() - began
        paces.prefilled(seat, self._record.prefill_s)
        if prefilled.usage is not None:
            new_tokens = prefilled.usage.prompt_tokens - (prefilled.usage.cached_tokens or 0)
            self._parts.outliers.timed(pod, self._record.prefill_s, new_tokens, time.monotonic())
            self._record.prefill_cached_tokens = prefilled.usage.cached_tokens
        return prefilled

    async def _call(self, pod: Pod, body: bytes, timeout_s: float) -> PodAnswer:
        request_id = self._record.request_id + self.handover.mark
        priority = self._record.priority
        items = self._incoming.header_items()
        headers = names.to_pod(items, request_id, self._session_id, self.handover.rank, priority)
        headers = traced(self._record.trace, Step.PREFILL, pod.url, headers)
        return await self._parts.client.call("POST", pod.url, self._incoming.target, headers, body, timeout_s)
