"""One generation request, from its body to its last byte.

Rule of this room: carry out the plan, say what went wrong, ask `core.fallback` what next. Nothing waits between
the legs, because P's lease runs (30 s, renewed by D only once the request is in D's scheduler).
"""

from __future__ import annotations

import time

from gateway.core.decide import Plan
from gateway.core.fallback import Attempts, Leg
from gateway.core.pods import Pod
from gateway.net import headers as names
from gateway.net.canary import Trial, goes_outside, trial_of
from gateway.net.entrance import Entrance
from gateway.net.exchange import Incoming, Outgoing, RawHeaders
from gateway.net.handover import refuse_offer
from gateway.net.intake import Intake, take_in
from gateway.net.learned import Learned
from gateway.net.outcome import Finished, LegFault, PodRejected, judge, no_connection, no_pod
from gateway.net.outside import Outside, OutsideProxy
from gateway.net.paces import answering_seat, paces_of
from gateway.net.parts import Parts
from gateway.net.placenotes import PlaceNotes
from gateway.net.prefill import PrefillLeg
from gateway.net.records import Outcome, RequestRecord
from gateway.net.relay import OpenStream, open_stream, relay_stream
from gateway.net.retries import Retries
from gateway.net.tracing import Step
from gateway.net.transfer import Transfer
from gateway.net.upstream import PodAnswer, PodFault
from gateway.wire import legs
from gateway.wire.answers import PrefillAnswer, engine_of
from gateway.wire.dialects import Tap
from gateway.wire.endpoints import Endpoint
from gateway.wire.errors import PodFailedError, PodTimeoutError
from gateway.wire.fields import integer_of
from gateway.wire.readback import on_ids
from gateway.wire.usage import Usage

_OK = Outcome.OK
"""Python 3.11 takes ten times as long for a member of an enum as for a global."""


class Generation:
    """Carries one request to its end. Make one per request and await `run` once."""

    _intake: Intake
    _rank: int | None
    _trial: Trial
    _places: PlaceNotes
    _retries: Retries | None = None

    def __init__(
        self, parts: Parts, endpoint: Endpoint, incoming: Incoming, outgoing: Outgoing, record: RequestRecord
    ) -> None:
        self._parts = parts
        self._endpoint = endpoint
        self._incoming = incoming
        self._outgoing = outgoing
        self._record = record
        self._started = time.monotonic()
        self._paces = paces_of(parts, record)
        self._kv = Transfer(parts, incoming, record)

    async def run(self) -> None:
        """Answer the client, learn from it. Raises ClientVisibleError, ClientGoneError."""
        parts, record = self._parts, self._record
        if parts.tracer is not None:
            record.trace = parts.tracer.begin(self._incoming)
        intake = await take_in(parts, self._endpoint, self._incoming, record)
        recognition = intake.recognition
        conversation = recognition.conversation
        self._intake = intake
        self._trial = trial = trial_of(parts, conversation.key)
        record.arm = trial.arm
        proxy = parts.outside
        if proxy is not None and goes_outside(proxy, intake, trial):
            await self._outside(proxy)
            return
        if parts.model_watch is not None and not parts.fleet.knows(intake.model):
            await parts.model_watch.look()
        self._places = PlaceNotes(parts, record, conversation.key, recognition.shared_tokens)
        parts.store.begin(conversation)
        parts.budget.request(time.monotonic())
        parts.wake_breakers()
        finished, entrance = False, Entrance(parts, self._incoming, record)
        learned: Learned | None = None
        try:
            plan = await entrance.enter(intake, self._started, self._plan)
            parts.store.bind(conversation, plan.prefill.url if plan.prefill else None, plan.answering.url)
            plan, learned = await self._until_answered(plan)
            if learned is not None:
                parts.store.finish(recognition, intake.chain, learned.result(plan, intake))
                finished = True
                if learned.response_id is not None:
                    for root in intake.roots:
                        parts.store.link(conversation, root, learned.response_id)
                self._learn(plan, learned.usage)
                if parts.shared is not None:
                    parts.shared.publish(recognition, named=intake.named)
        finally:
            if not finished:
                parts.store.fail(conversation)
            entrance.over(None if learned is None else learned.usage)

    async def _outside(self, proxy: OutsideProxy) -> None:
        """Have the operator's own proxy answer. That is charged as any answer; no pod of ours has to have room."""
        parts, record, intake = self._parts, self._record, self._intake
        entrance = Entrance(parts, self._incoming, record)
        try:
            await entrance.charge(intake)
            await Outside(parts, proxy, self._endpoint, self._incoming, self._outgoing).run(intake, record)
        finally:
            prompt = 0 if record.status >= 400 else record.prompt_tokens
            entrance.over(None if prompt is None else Usage(prompt, record.output_tokens or 0))

    def _plan(self) -> Plan | None:
        """Decide, as things stand now."""
        parts, record, intake = self._parts, self._record, self._intake
        model = intake.model
        began = time.perf_counter()
        plan = self._trial.decide(parts, intake, parts.fleet.serving(model), record)
        record.decide_s = time.perf_counter() - began
        if plan is not None:
            record.model = model if model in plan.answering.facts.models else "other"
        return plan

    def _learn(self, plan: Plan, usage: Usage | None) -> None:
        if usage is None:
            return
        parts, intake, output_tokens = self._parts, self._intake, usage.output_tokens
        parts.bytes_per_token.learn(intake.model, intake.prompt_bytes, usage.prompt_tokens)
        if output_tokens:
            parts.outputs.learn(intake.tenant, output_tokens)
        self._places.learn(plan, usage)
        if self._paces is not None:
            self._paces.ended(plan.answering)

    async def _until_answered(self, plan: Plan) -> tuple[Plan, Learned | None]:
        try:
            while True:
                self._note_plan(plan)
                try:
                    return plan, await self._carry_out(plan)
                except PodRejected as rejected:
                    self._kv.rejected(plan.answering)
                    self._record.outcome = Outcome.REJECTED
                    if rejected.answer.status == 404 and self._parts.model_watch is not None:
                        self._parts.model_watch.doubt()
                    self._send(rejected.answer)
                    return plan, None
                except LegFault as failure:
                    self._kv.failed(failure)
                    if self._retries is None:
                        self._retries = self._first_retry()
                    following = await self._retries.after(plan, failure, lease_runs=self._kv.unused)
                    if following is None:
                        self._give_up(failure)
                        return plan, None
                    plan = following
        finally:
            if self._retries is not None:
                self._retries.settle()
            self._kv.drop()

    def _first_retry(self) -> Retries:
        intake = self._intake
        key, fleet = intake.recognition.conversation.key, self._parts.fleet.serving(intake.model)
        attempts = Attempts(key, fleet, handover_allowed=intake.request.whole is None)
        return Retries(self._parts, self._record, attempts)

    def _give_up(self, failure: LegFault) -> None:
        if failure.answer is not None:
            self._send(failure.answer)
            return
        if failure.fault.word == "local":
            raise no_connection()
        if not any(pod.up for pod in self._parts.fleet if pod.role != "prefill"):
            raise no_pod()
        if failure.fault.word == "timeout":
            raise PodTimeoutError("No pod answered in time.")
        raise PodFailedError(f"No pod could answer ({failure.leg} leg: {failure.fault.word}).")

    async def _carry_out(self, plan: Plan) -> Learned | None:
        parts, kv, pod = self._parts, self._kv, plan.answering
        seat = answering_seat(plan, self._intake.request.prompt_tokens)
        opened: OpenStream | Finished | None = None
        try:
            await kv.prepare(plan, self._prefill_leg)
            prefilled = kv.prefilled
            leg = self._open(pod, self._body(pod, prefilled))
            sent_at = time.monotonic()
            opened = await (leg if prefilled is None else kv.beside(seat, leg))
            kv.taken()
            seat.began()
            if self._paces is not None:
                self._paces.began(seat, sent_at, handed_over=prefilled is not None)
            parts.praise(pod, begun=True)
            if self._retries is not None:
                self._retries.settle()
            if isinstance(opened, Finished):
                return self._deliver(pod, opened, kv.prefilled)
            return await self._relay(pod, opened, kv.prefilled)
        finally:
            if isinstance(opened, OpenStream):
                opened.answer.close()
            seat.leave_unless_kept()
            parts.admission.freed()

    def _prefill_leg(self) -> PrefillLeg:
        return PrefillLeg(self._parts, self._endpoint, self._incoming, self._record, self._intake, self._paces)

    def _body(self, pod: Pod, prefilled: PrefillAnswer | None) -> bytes:
        """Of the answering leg."""
        ask_usage = self._record.stream and self._endpoint.dialect.asks_usage
        ask_usage = ask_usage and (self._one_choice or pod.url in self._parts.fingerprints)
        fields = self._intake.fields
        if prefilled is not None and self._kv.ids is not None:
            fields = on_ids(self._endpoint.api, fields, self._kv.ids)
        if self._places.wants_report(pod):
            fields = legs.with_report(fields)
        return legs.decode_body(fields, None if prefilled is None else prefilled.handover, ask_usage=ask_usage)

    async def _open(self, pod: Pod, body: bytes) -> OpenStream | Finished:
        """Send the answering leg and wait until the pod has said something that may go to the client."""
        parts, record, kv, incoming = self._parts, self._record, self._kv, self._incoming
        timeouts, request_id = parts.settings.timeouts, record.request_id + kv.mark
        limit_s = (timeouts.first_byte_s if record.stream else timeouts.unstreamed_s) + kv.extra_s
        headers = names.of_leg(self._intake.headers, request_id, record.conversation, self._rank, record.priority)
        if record.trace is not None:
            headers = record.trace.leg(Step.ANSWER, pod.url, headers)
        answer: PodAnswer | None = None
        opened: OpenStream | Finished | None = None
        try:
            answer = await parts.client.call("POST", pod.url, incoming.target, headers, body, limit_s)
            content_type = answer.content_type
            if answer.status == 200 and content_type == "text/event-stream":
                opened = await open_stream(answer, self._tap(pod), timeouts.first_byte_s)
            else:
                opened = Finished(answer.status, answer.raw_headers, await answer.read(limit_s))
        except PodFault as fault:
            parts.notice(pod, fault)
            if record.trace is not None:
                record.trace.over(Step.ANSWER, fault.word)
            raise LegFault(Leg.ANSWER, fault) from fault
        finally:
            if answer is not None and opened is None:
                answer.close()
        if isinstance(opened, Finished):
            return judge(opened, content_type)
        dialect = self._endpoint.dialect
        if opened.tap.error and dialect.blames_the_pod(opened.opening):
            answer.close()
            rest = b"" if opened.tap.done else dialect.last_word
            bad = Finished(200, answer.raw_headers, opened.opening + rest)
            raise LegFault(Leg.ANSWER, PodFault("error_event", opened.tap.error), bad)
        return opened

    def _tap(self, pod: Pod) -> Tap:
        prefilled = self._kv.prefilled
        fingerprint = self._parts.fingerprints.get(pod.url)
        return self._endpoint.dialect.tap(self._intake.fields, prefilled.details if prefilled else None, fingerprint)

    @property
    def _one_choice(self) -> bool:
        """With several choices, a pod whose fingerprint is unknown is not asked for usage.

        Asking makes vLLM take the fingerprint off the finish chunks; with one choice the usage chunk follows at
        once and the tap can put it back, with several that would mean to hold back the others.
        """
        return (integer_of(self._intake.fields, "n") or 1) == 1

    def _deliver(self, pod: Pod, finished: Finished, prefilled: PrefillAnswer | None) -> Learned:
        parts, record = self._parts, self._record
        whole = self._endpoint.dialect.rewrite(finished.body, None if prefilled is None else prefilled.details)
        if whole.offer is not None:
            parts.met_engine(pod, engine_of(whole.offer))
            refuse_offer(parts, pod, self._incoming, record, whole.offer)
        record.ttft_s = time.monotonic() - self._started
        self._count(whole.usage, prefilled)
        record.outcome = _OK
        parts.praise(pod)
        self._send(Finished(finished.status, finished.headers, whole.body))
        return Learned(whole.usage, whole.reply_head, whole.reasoned, whole.response_id)

    async def _relay(self, pod: Pod, stream: OpenStream, prefilled: PrefillAnswer | None) -> Learned | None:
        parts, record, tap = self._parts, self._record, stream.tap
        record.status = stream.answer.status
        record.ttft_s = stream.first_byte_at - self._started
        try:
            end = await relay_stream(
                stream,
                self._outgoing,
                self._client_headers(stream.answer.raw_headers),
                parts.settings.timeouts.token_gap_s,
            )
        finally:
            self._count(tap.usage, prefilled)
        if tap.fingerprint is not None:
            parts.fingerprints[pod.url] = tap.fingerprint
        if end.fault is not None or tap.error is not None:
            record.outcome = Outcome.BROKEN
            fault = end.fault or PodFault("error_event", tap.error or "")
            parts.notice(pod, fault)
            if end.fault is not None:
                parts.blame(pod, fault.word)
            parts.observer.fault(f"stream_{fault.word}", pod.url, record.request_id, fault.detail)
            return None
        parts.praise(pod)
        lasted_s = end.last_byte_at - stream.first_byte_at
        if record.output_tokens and record.output_tokens > 1:
            record.tpot_s = lasted_s / (record.output_tokens - 1)
        record.gaps, record.gaps_s = end.gaps, lasted_s
        record.outcome = _OK
        if tap.offer is not None:
            refuse_offer(parts, pod, self._incoming, record, tap.offer)
        return Learned(tap.usage, tap.reply_head, tap.reasoned, tap.response_id)

    def _count(self, usage: Usage | None, prefilled: PrefillAnswer | None) -> None:
        if usage is None:
            return
        record = self._record
        record.prompt_tokens, record.output_tokens = usage.prompt_tokens, usage.output_tokens
        record.cached_tokens = cached = usage.cached_tokens
        if prefilled is None:
            pod = self._parts.fleet.get(record.answering) if record.stream and record.attempts == 1 else None
            if pod is not None and record.ttft_s:
                self._parts.outliers.timed(pod, record.ttft_s, usage.prompt_tokens - cached, time.monotonic())
        elif prefilled.usage is not None and prefilled.usage.prompt_tokens != usage.prompt_tokens:
            told = prefilled.usage.prompt_tokens
            detail = f"prefill pod counted {told} prompt tokens, the answering pod {usage.prompt_tokens}"
            self._parts.observer.fault("prompt_mismatch", record.answering, record.request_id, detail)

    def _send(self, answer: Finished) -> None:
        self._record.status = answer.status
        self._outgoing.send(answer.status, self._client_headers(answer.headers), answer.body)

    def _client_headers(self, headers: RawHeaders) -> RawHeaders:
        record = self._record
        ours = names.to_client(headers, record.request_id)
        if self._parts.settings.expose_decisions and record.route is not None:
            ours += [
                (names.ROUTE.encode(), record.route.encode()),
                (names.REASON.encode(), _ascii(record.reason or "")),
            ]
        return ours

    def _note_plan(self, plan: Plan) -> None:
        record, prefill = self._record, plan.prefill
        record.route, record.reason = plan.route, plan.reason
        record.attempts = 1 if self._retries is None else self._retries.count
        record.note_decision(plan)
        record.prefill = None if prefill is None else prefill.url
        record.answering = plan.answering.url
        self._rank = plan.rank
        self._places.expect(plan)


def _ascii(reason: str) -> bytes:
    """A reason as a header value."""
    return reason.replace("π", "pi").encode("ascii", "replace")
