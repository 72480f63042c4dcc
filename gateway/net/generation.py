"""One generation request, from its body to its last byte.

Rule of this room: carry out the plan, say what went wrong, ask `core.fallback` what next. Nothing waits between
the legs, because P's lease runs (30 s, renewed by D only once the request is in D's scheduler).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from gateway.core.conversations import TurnResult
from gateway.core.decide import Plan
from gateway.core.fallback import Attempts, Leg
from gateway.core.pods import Pod, Seat
from gateway.core.policies import Route
from gateway.net import headers as names
from gateway.net.canary import ALL_CANARY, goes_outside, trial_of
from gateway.net.entrance import Entrance
from gateway.net.exchange import Headers, Incoming, Outgoing
from gateway.net.handover import close_opened, let_go, refuse_offer
from gateway.net.intake import Intake, take_in
from gateway.net.outcome import Finished, LegFault, PodRejected, judge, no_connection, no_pod
from gateway.net.outside import Outside, OutsideProxy
from gateway.net.paces import Paces
from gateway.net.parts import Parts
from gateway.net.placenotes import PlaceNotes
from gateway.net.prefill import PrefillLeg
from gateway.net.records import Outcome, RequestRecord
from gateway.net.relay import OpenStream, open_stream, relay_stream
from gateway.net.retries import Retries
from gateway.net.tracing import Step, traced
from gateway.net.transfer import Transfer
from gateway.net.upstream import PodAnswer, PodFault
from gateway.wire import legs
from gateway.wire.answers import PrefillAnswer, engine_of
from gateway.wire.dialects import Tap
from gateway.wire.endpoints import Endpoint
from gateway.wire.errors import PodFailedError, PodTimeoutError
from gateway.wire.fields import Fields, integer_of
from gateway.wire.readback import on_ids
from gateway.wire.usage import Usage


@dataclass(frozen=True, slots=True)
class Learned:
    """What the answering pod's answer taught: its usage (None if it did not say), the head of the reply, whether some
    of it was reasoning, and the id by which a later request may go on from it."""

    usage: Usage | None
    reply_head: bytes | None
    reasoned: bool
    response_id: str | None = None


class Generation:
    """Carries one request to its end. Make one per request and await `run` once."""

    def __init__(
        self, parts: Parts, endpoint: Endpoint, incoming: Incoming, outgoing: Outgoing, record: RequestRecord
    ) -> None:
        self._parts = parts
        self._endpoint = endpoint
        self._incoming = incoming
        self._outgoing = outgoing
        self._record = record
        self._started = time.monotonic()
        self._fields: Fields = {}
        self._prompt_tokens = 1
        self._session_id: str | None = None
        self._rank: int | None = None
        self._places = PlaceNotes(parts, record)
        self._paces = Paces(parts, record)
        self._retries: Retries
        self._trial = ALL_CANARY
        self._kv = Transfer(parts, incoming, record)

    async def run(self) -> None:
        """Answer the client, learn from it. Raises ClientVisibleError, ClientGoneError."""
        parts = self._parts
        if parts.tracer is not None:
            self._record.trace = parts.tracer.begin(self._incoming)
        intake = await take_in(parts, self._endpoint, self._incoming, self._record)
        self._fields, self._session_id = intake.fields, intake.session_id
        self._prompt_tokens = intake.request.prompt_tokens
        conversation = intake.recognition.conversation
        self._trial = trial_of(parts, conversation.key)
        self._record.arm = self._trial.arm
        proxy = parts.outside
        if proxy is not None and goes_outside(proxy, intake, self._trial):
            await self._outside(proxy, intake)
            return
        if parts.model_watch is not None and not parts.fleet.knows(intake.model):
            await parts.model_watch.look()
        self._places.key = conversation.key
        parts.store.begin(conversation)
        parts.budget.request(time.monotonic())
        parts.wake_breakers()
        finished, entrance = False, Entrance(parts, self._incoming, self._record)
        learned: Learned | None = None
        try:
            plan = await entrance.enter(intake, self._started, lambda: self._plan(intake))
            parts.store.bind(conversation, plan.prefill.url if plan.prefill else None, plan.answering.url)
            plan, learned = await self._until_answered(plan, intake)
            if learned is not None:
                parts.store.finish(intake.recognition, intake.chain, self._result(plan, learned, intake.prompt_bytes))
                finished = True
                if learned.response_id is not None:
                    for root in intake.roots:
                        parts.store.link(conversation, root, learned.response_id)
                self._learn(intake, plan, learned.usage)
                if parts.shared is not None:
                    parts.shared.publish(intake.recognition, named=intake.named)
        finally:
            if not finished:
                parts.store.fail(conversation)
            entrance.over(None if learned is None else learned.usage)

    async def _outside(self, proxy: OutsideProxy, intake: Intake) -> None:
        """Have the operator's own proxy answer. That is charged as any answer; no pod of ours has to have room."""
        parts, record = self._parts, self._record
        entrance = Entrance(parts, self._incoming, record)
        try:
            await entrance.charge(intake)
            await Outside(parts, proxy, self._endpoint, self._incoming, self._outgoing).run(intake, record)
        finally:
            prompt = 0 if record.status >= 400 else record.prompt_tokens
            entrance.over(None if prompt is None else Usage(prompt, record.output_tokens))

    def _plan(self, intake: Intake) -> Plan | None:
        """Decide, as things stand now."""
        parts = self._parts
        began = time.perf_counter()
        plan = self._trial.decide(parts, intake, parts.fleet.serving(intake.model), self._record)
        self._record.decide_s = time.perf_counter() - began
        if plan is not None:
            self._record.model = intake.model if intake.model in plan.answering.facts.models else "other"
        return plan

    def _learn(self, intake: Intake, plan: Plan, usage: Usage | None) -> None:
        if usage is None:
            return
        self._parts.bytes_per_token.learn(intake.model, intake.prompt_bytes, usage.prompt_tokens)
        if usage.output_tokens:
            self._parts.outputs.learn(intake.tenant, usage.output_tokens)
        self._places.learn(plan, intake.recognition.shared_tokens, usage)
        self._paces.ended(plan.answering)

    async def _until_answered(self, plan: Plan, intake: Intake) -> tuple[Plan, Learned | None]:
        key, handover_allowed = intake.recognition.conversation.key, intake.request.whole is None
        self._retries = Retries(
            self._parts, self._record, Attempts(key, self._parts.fleet.serving(intake.model), handover_allowed)
        )
        try:
            while True:
                self._note_plan(plan, self._retries.count)
                try:
                    return plan, await self._carry_out(plan)
                except PodRejected as rejected:
                    self._record.outcome = Outcome.REJECTED
                    if rejected.answer.status == 404 and self._parts.model_watch is not None:
                        self._parts.model_watch.doubt()
                    await self._send(rejected.answer)
                    return plan, None
                except LegFault as failure:
                    following = await self._retries.after(plan, failure, lease_runs=self._kv.unused)
                    if following is None:
                        await self._give_up(failure)
                        return plan, None
                    plan = following
        finally:
            self._retries.settle()
            self._kv.drop()

    async def _give_up(self, failure: LegFault) -> None:
        if failure.answer is not None:
            await self._send(failure.answer)
            return
        if failure.fault.word == "local":
            raise no_connection()
        if not any(pod.up for pod in self._parts.fleet if pod.role != "prefill"):
            raise no_pod()
        if failure.fault.word == "timeout":
            raise PodTimeoutError("No pod answered in time.")
        raise PodFailedError(f"No pod could answer ({failure.leg} leg: {failure.fault.word}).")

    async def _carry_out(self, plan: Plan) -> Learned | None:
        seat = self._paces.answering_seat(plan, self._prompt_tokens)
        try:
            await self._kv.prepare(plan, self._prefill_leg)
            return await self._answer(seat)
        finally:
            seat.leave_unless_kept()
            self._parts.admission.freed()

    def _prefill_leg(self) -> PrefillLeg:
        return PrefillLeg(
            self._parts,
            self._endpoint,
            self._incoming,
            self._record,
            self._fields,
            self._session_id,
            self._prompt_tokens,
        )

    async def _answer(self, seat: Seat) -> Learned | None:
        pod, prefilled = seat.pod, self._kv.prefilled
        asks = self._record.stream and self._endpoint.dialect.asks_usage
        ask_usage = asks and (self._one_choice or pod.url in self._parts.fingerprints)
        fields = self._fields
        if prefilled is not None and self._kv.ids is not None:
            fields = on_ids(self._endpoint.api, fields, self._kv.ids)
        if self._places.wants_report(pod):
            fields = legs.with_report(fields)
        body = legs.decode_body(fields, prefilled.handover if prefilled else None, ask_usage=ask_usage)
        sent_at = time.monotonic()
        opening = asyncio.get_running_loop().create_task(self._kv.beside(self._open(pod, body)))
        opened: OpenStream | Finished | None = None
        try:
            opened = await asyncio.shield(opening)
            self._kv.taken()
            self._paces.began(seat, sent_at, handed_over=prefilled is not None)
            self._parts.praise(pod, begun=True)
            self._retries.settle()
            if isinstance(opened, Finished):
                return await self._deliver(pod, opened, self._kv.prefilled)
            return await self._relay(pod, opened, self._kv.prefilled)
        except LegFault as failure:
            self._kv.failed(failure)
            raise
        except PodRejected:
            self._kv.rejected(pod)
            raise
        finally:
            if opened is None and not opening.done():
                seat.kept = True
                grace_s = self._parts.settings.timeouts.handover_grace_s - (time.monotonic() - sent_at)
                done = self._parts.let_go_done(self._kv.passed_on())
                self._parts.background(let_go(seat, opening, grace_s if prefilled is not None else 0.0, done))
            else:
                close_opened(opening)
            del opening  # its error holds this frame

    async def _open(self, pod: Pod, body: bytes) -> OpenStream | Finished:
        """Send the answering leg and wait until the pod has said something that may go to the client."""
        timeouts = self._parts.settings.timeouts
        limit_s = (timeouts.first_byte_s if self._record.stream else timeouts.unstreamed_s) + self._kv.extra_s
        answer: PodAnswer | None = None
        opened: OpenStream | Finished | None = None
        try:
            answer = await self._call(pod, body, limit_s)
            if answer.status == 200 and answer.content_type == "text/event-stream":
                opened = await open_stream(answer, self._tap(pod), timeouts.first_byte_s)
            else:
                opened = Finished(answer.status, answer.headers, await answer.read(limit_s))
        except PodFault as fault:
            self._parts.notice(pod, fault)
            if self._record.trace is not None:
                self._record.trace.over(Step.ANSWER, fault.word)
            raise LegFault(Leg.ANSWER, fault) from fault
        finally:
            if answer is not None and not isinstance(opened, OpenStream):
                answer.close()
        if isinstance(opened, Finished):
            return judge(opened)
        dialect = self._endpoint.dialect
        if opened.tap.error and dialect.blames_the_pod(opened.opening):
            answer.close()
            rest = b"" if opened.tap.done else dialect.last_word
            bad = Finished(200, answer.headers, opened.opening + rest)
            raise LegFault(Leg.ANSWER, PodFault("error_event", opened.tap.error), bad)
        return opened

    def _tap(self, pod: Pod) -> Tap:
        prefilled = self._kv.prefilled
        fingerprint = self._parts.fingerprints.get(pod.url)
        return self._endpoint.dialect.tap(self._fields, prefilled.details if prefilled else None, fingerprint)

    @property
    def _one_choice(self) -> bool:
        """With several choices, a pod whose fingerprint is unknown is not asked for usage.

        Asking makes vLLM take the fingerprint off the finish chunks; with one choice the usage chunk follows at
        once and the tap can put it back, with several that would mean to hold back the others.
        """
        return (integer_of(self._fields, "n") or 1) == 1

    async def _deliver(self, pod: Pod, finished: Finished, prefilled: PrefillAnswer | None) -> Learned:
        self._parts.met_engine(pod, engine_of(finished.body))
        whole = self._endpoint.dialect.rewrite(finished.body, prefilled.details if prefilled else None)
        self._record.ttft_s = time.monotonic() - self._started
        self._count(whole.usage, prefilled)
        self._record.outcome = Outcome.OK
        self._parts.praise(pod)
        if whole.offer is not None:
            refuse_offer(self._parts, pod, self._incoming, self._record, whole.offer)
        await self._send(Finished(finished.status, finished.headers, whole.body))
        return Learned(whole.usage, whole.reply_head, whole.reasoned, whole.response_id)

    async def _relay(self, pod: Pod, stream: OpenStream, prefilled: PrefillAnswer | None) -> Learned | None:
        record, tap = self._record, stream.tap
        record.status = stream.answer.status
        record.ttft_s = stream.first_byte_at - self._started
        try:
            end = await relay_stream(
                stream,
                self._outgoing,
                self._client_headers(stream.answer.headers),
                self._parts.settings.timeouts.token_gap_s,
            )
        finally:
            self._count(tap.usage, prefilled)
        if tap.fingerprint is not None:
            self._parts.fingerprints[pod.url] = tap.fingerprint
        if end.fault is not None or tap.error is not None:
            record.outcome = Outcome.BROKEN
            fault = end.fault or PodFault("error_event", tap.error or "")
            self._parts.notice(pod, fault)
            if end.fault is not None:
                self._parts.blame(pod, fault.word)
            self._parts.observer.fault(f"stream_{fault.word}", pod.url, record.request_id, fault.detail)
            return None
        self._parts.praise(pod)
        if record.output_tokens and record.output_tokens > 1:
            record.tpot_s = (end.last_byte_at - stream.first_byte_at) / (record.output_tokens - 1)
        record.gaps, record.gaps_s = end.gaps, end.last_byte_at - stream.first_byte_at
        record.outcome = Outcome.OK
        if tap.offer is not None:
            refuse_offer(self._parts, pod, self._incoming, self._record, tap.offer)
        return Learned(tap.usage, tap.reply_head, tap.reasoned, tap.response_id)

    def _count(self, usage: Usage | None, prefilled: PrefillAnswer | None) -> None:
        if usage is None:
            return
        record = self._record
        record.prompt_tokens, record.output_tokens = usage.prompt_tokens, usage.output_tokens
        record.cached_tokens = usage.cached_tokens
        pod = self._parts.fleet.get(record.answering)
        if prefilled is None and pod is not None and record.stream and record.ttft_s and record.attempts == 1:
            new_tokens = usage.prompt_tokens - (usage.cached_tokens or 0)
            self._parts.outliers.timed(pod, record.ttft_s, new_tokens, time.monotonic())
        if prefilled is not None and prefilled.usage is not None:
            told = prefilled.usage.prompt_tokens
            if told != usage.prompt_tokens:
                detail = f"prefill pod counted {told} prompt tokens, the answering pod {usage.prompt_tokens}"
                self._parts.observer.fault("prompt_mismatch", record.answering, record.request_id, detail)

    async def _call(self, pod: Pod, body: bytes, timeout_s: float) -> PodAnswer:
        request_id = self._record.request_id + self._kv.mark
        items, priority = self._incoming.header_items(), self._record.priority
        headers = names.to_pod(items, request_id, self._session_id, self._rank, priority)
        headers = traced(self._record.trace, Step.ANSWER, pod.url, headers)
        return await self._parts.client.call("POST", pod.url, self._incoming.target, headers, body, timeout_s)

    async def _send(self, answer: Finished) -> None:
        self._record.status = answer.status
        self._outgoing.send(answer.status, self._client_headers(answer.headers), answer.body)

    def _client_headers(self, headers: Headers) -> Headers:
        record = self._record
        ours = names.to_client(headers, record.request_id)
        if self._parts.settings.expose_decisions and record.route is not None:
            ours += [
                (names.ROUTE, record.route),
                (names.REASON, _ascii(record.reason or "")),
            ]
        return ours

    def _note_plan(self, plan: Plan, attempt: int) -> None:
        record = self._record
        record.route, record.reason, record.attempts = plan.route, plan.reason, attempt
        record.note_decision(plan)
        record.prefill = plan.prefill.url if plan.prefill else None
        record.answering = plan.answering.url
        self._rank = plan.rank
        self._places.expect(plan)

    def _result(self, plan: Plan, learned: Learned, prompt_bytes: int) -> TurnResult:
        usage = learned.usage
        return TurnResult(
            prefill=plan.prefill.url if plan.prefill else None,
            decode=plan.answering.url,
            epoch=plan.answering.epoch,
            route=plan.route if plan.route is Route.LOCAL else Route.PD,
            prompt_tokens=usage.prompt_tokens if usage else self._prompt_tokens,
            output_tokens=usage.output_tokens if usage else 0,
            reply_head=learned.reply_head,
            prompt_bytes=prompt_bytes,
            reasoned=learned.reasoned,
        )


def _ascii(reason: str) -> str:
    """A reason as a header value."""
    return reason.replace("π", "pi").encode("ascii", "replace").decode()
