"""The prefill leg: P computes the prompt, or reads the part of it that lies elsewhere, and keeps the blocks for D.

Rule of this room: a readback that fails costs the readback, not the request.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine
from typing import Any

from msgspec import structs

from gateway.core.decide import Plan
from gateway.core.fallback import Leg
from gateway.core.pods import Pod, Seat
from gateway.core.policies import Route
from gateway.net import headers as names
from gateway.net.exchange import Incoming
from gateway.net.handover import release
from gateway.net.intake import Intake
from gateway.net.outcome import Finished, LegFault, PodRejected
from gateway.net.paces import Paces, prefill_seat
from gateway.net.parts import Parts
from gateway.net.readback import MIN_TOKENS, PROOF_S, Recall, Recalled, RecallFault
from gateway.net.records import RequestRecord
from gateway.net.tracing import Step
from gateway.net.upstream import PodAnswer, PodFault
from gateway.wire import legs
from gateway.wire.answers import PrefillAnswer, engine_of
from gateway.wire.endpoints import Endpoint
from gateway.wire.handovers import Handover
from gateway.wire.readback import on_ids, with_ids


class PrefillLeg:
    """One request's way through P.

    handover: how its blocks get to D. ids: the prompt's, once P has read some of it back: D must take the prompt in the
    same ids.
    """

    handover: Handover
    ids: list[int] | None = None

    def __init__(
        self,
        parts: Parts,
        endpoint: Endpoint,
        incoming: Incoming,
        record: RequestRecord,
        intake: Intake,
        paces: Paces | None,
    ) -> None:
        self._parts = parts
        self._endpoint = endpoint
        self._incoming = incoming
        self._record = record
        self._intake = intake
        self._paces = paces

    def begin(self, prefill: Pod) -> Handover:
        """Choose how the blocks get from there to D. Raises LegFault where that is not known."""
        try:
            self.handover = self._parts.origins.begin(prefill)
        except PodFault as fault:
            raise LegFault(Leg.PREFILL, fault) from fault
        return self.handover

    def run(self, prefill: Pod, plan: Plan) -> Coroutine[Any, Any, PrefillAnswer]:
        """The prefill leg, with the history read from its holder where the plan says so and that works out."""
        record = self._record
        record.holder = record.readback_tokens = None
        if plan.holder is None:
            return self._ask(prefill)
        return self._with_holder(prefill, plan.holder, plan.resident_tokens)

    async def _with_holder(self, prefill: Pod, holder: Pod, resident_tokens: int) -> PrefillAnswer:
        holder.readbacks += 1
        prefill.readbacks += 1
        try:
            return await self._read_back(prefill, holder, resident_tokens)
        finally:
            holder.readbacks -= 1
            prefill.readbacks -= 1

    async def _read_back(self, prefill: Pod, holder: Pod, resident_tokens: int) -> PrefillAnswer:
        record, api = self._record, self._endpoint.api
        recall = Recall(self._parts, self._intake.headers, record, api, self._intake.fields, record.conversation)
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
        return structs.replace(prefilled, handover=with_ids(prefilled.handover, recalled.ids))

    def _must_read(self, prefill: Pod, recalled: Recalled) -> bool:
        """False when P may have so much of it that it need not read, hence proves nothing by answering."""
        own = self._parts.residency.tokens(prefill, self._intake.recognition.conversation.key)
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
        parts, record, handover = self._parts, self._record, self.handover
        limit_s = parts.settings.timeouts.prefill_s
        api, fields = self._endpoint.api, self._intake.fields
        if recalled is not None:
            fields = on_ids(api, fields, recalled.ids)
        body = legs.prefill_body(api, fields, parts.settings.prefill_keep_fields, handover.ask)
        if recalled is not None:
            body = legs.with_params(body, recalled.params)
            limit_s = limit_s if pod.reads_back else min(limit_s, PROOF_S)
        incoming, request_id = self._incoming, record.request_id + handover.mark
        headers = names.of_leg(self._intake.headers, request_id, record.conversation, handover.rank, record.priority)
        began = time.monotonic()
        answer: PodAnswer | None = None
        text: bytes | None = None
        seat = prefill_seat(self._paces, pod, self._intake.request.prompt_tokens)
        word: str | None = "cancelled"
        try:
            if record.trace is not None:
                headers = record.trace.leg(Step.PREFILL, pod.url, headers)
            answer = await parts.client.call("POST", pod.url, incoming.target, headers, body, limit_s)
            text = await answer.read(max(0.001, began + limit_s - time.monotonic()))
            word = None if answer.status == 200 else "status"
        except PodFault as fault:
            word = fault.word
            parts.notice(pod, fault)
            raise LegFault(Leg.PREFILL, fault) from fault
        finally:
            seat.leave()
            parts.admission.freed()
            if record.trace is not None:
                record.trace.over(Step.PREFILL, word)
            if answer is not None and text is None:
                answer.close()
        if answer.status != 200:
            finished = Finished(answer.status, answer.raw_headers, text)
            if 400 <= answer.status < 500:
                raise PodRejected(finished)
            raise LegFault(Leg.PREFILL, PodFault("status", str(answer.status)), finished)
        return self._read(pod, seat, text, began)

    def _read(self, pod: Pod, seat: Seat, text: bytes, began: float) -> PrefillAnswer:
        """What P's answer teaches, and what D is to be told."""
        parts, record, prefilled = self._parts, self._record, self._endpoint.dialect.read_prefill(text)
        handover = self.handover.answered(prefilled)
        if handover is None:
            why = f"no kv_transfer_params (finish_reason {prefilled.finish_reason})"
            raise LegFault(Leg.PREFILL, PodFault("no_handover", why))
        if handover is not prefilled.handover:
            prefilled = structs.replace(prefilled, handover=handover)
        parts.met_engine(pod, engine_of(handover))
        parts.origins.learn(pod, handover)
        parts.praise(pod)
        now = time.monotonic()
        record.prefill_s = seconds = now - began
        if self._paces is not None:
            self._paces.prefilled(seat, seconds)
        usage = prefilled.usage
        if usage is not None:
            record.prefill_cached_tokens = cached = usage.cached_tokens
            parts.outliers.timed(pod, seconds, usage.prompt_tokens - cached, now)
        return prefilled
