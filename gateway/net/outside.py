"""The operator's own proxy, to which the baseline's requests go unchanged.

Rule of this room: what the client sent goes there byte for byte, what comes back goes to the client byte for byte; the
gateway only listens, to recognise the next turn and to time the answer. Nothing goes to any other URL than the
configured one, nothing is tried twice, and no key of the pods' goes along.
"""

from __future__ import annotations

import time

from gateway.core.policies import Route
from gateway.core.turns import TurnResult
from gateway.net import headers as names
from gateway.net.exchange import Incoming, Outgoing
from gateway.net.intake import Intake
from gateway.net.parts import Parts
from gateway.net.records import Outcome, RequestRecord
from gateway.net.upstream import PodAnswer, PodClient, PodFault
from gateway.wire.dialects import Tap
from gateway.wire.endpoints import Endpoint
from gateway.wire.errors import PodFailedError, PodTimeoutError
from gateway.wire.framing import MalformedStreamError
from gateway.wire.usage import Usage

EVENT_STREAM = "text/event-stream"


class OutsideProxy:
    """Where it is, and connections to it. Use `client` as an async context manager first."""

    def __init__(self, url: str, client: PodClient) -> None:
        self.url = url
        self.client = client
        self.in_flight = 0


class Outside:
    """Carries one request to the proxy and its answer back. Make one per request and await `run`."""

    def __init__(
        self, parts: Parts, proxy: OutsideProxy, endpoint: Endpoint, incoming: Incoming, outgoing: Outgoing
    ) -> None:
        self._parts = parts
        self._proxy = proxy
        self._endpoint = endpoint
        self._incoming = incoming
        self._outgoing = outgoing
        self._began = time.monotonic()

    async def run(self, intake: Intake, record: RequestRecord) -> None:
        """Answer the client. Raises ClientVisibleError, ClientGoneError."""
        parts, conversation = self._parts, intake.recognition.conversation
        record.route, record.answering, record.attempts = Route.PD, self._proxy.url, 1
        record.reason = f"turn {record.turn}: the baseline's requests pass through"
        parts.store.begin(conversation)
        self._proxy.in_flight += 1
        result: TurnResult | None = None
        response_id: str | None = None
        try:
            result, response_id = await self._ask(intake, record)
        except PodFault as fault:
            parts.observer.fault(f"outside_{fault.word}", self._proxy.url, record.request_id, fault.detail)
            if fault.word == "timeout":
                raise PodTimeoutError("The baseline's proxy did not answer in time.") from fault
            raise PodFailedError(f"The baseline's proxy could not answer ({fault.word}).") from fault
        finally:
            self._proxy.in_flight -= 1
            if result is None:
                parts.store.fail(conversation)
        if result is None:
            return
        parts.store.finish(intake.recognition, intake.chain, result)
        if response_id is not None:
            for root in intake.roots:
                parts.store.link(conversation, root, response_id)
        if parts.shared is not None:
            parts.shared.publish(intake.recognition, named=intake.named)

    async def _ask(self, intake: Intake, record: RequestRecord) -> tuple[TurnResult | None, str | None]:
        timeouts, incoming = self._parts.settings.timeouts, self._incoming
        limit_s = timeouts.first_byte_s if record.stream else timeouts.unstreamed_s
        headers = names.to_outside(incoming.header_items(), record.request_id)
        answer = await self._proxy.client.call(
            incoming.method, self._proxy.url, incoming.target, headers, incoming.body, limit_s
        )
        try:
            if answer.status == 200 and answer.content_type == EVENT_STREAM:
                return await self._stream(answer, intake, record)
            body = await answer.read(limit_s)
        finally:
            answer.close()
        record.status, record.ttft_s = answer.status, time.monotonic() - self._began
        record.outcome = _outcome_of(answer.status)
        self._outgoing.send(answer.status, names.from_outside(answer.raw_headers), body)
        if answer.status != 200:
            return None, None
        whole = self._endpoint.dialect.rewrite(body, None)
        return self._result(intake, record, whole.usage, whole.reply_head, whole.reasoned), whole.response_id

    async def _stream(
        self, answer: PodAnswer, intake: Intake, record: RequestRecord
    ) -> tuple[TurnResult | None, str | None]:
        tap, outgoing = self._endpoint.dialect.tap(intake.fields, None, None), self._outgoing
        readable = not any(name.lower() == b"content-encoding" for name, _ in answer.raw_headers)
        first_at = last_at = 0.0

        def pass_on(data: bytes) -> None:
            nonlocal first_at, last_at, readable
            if readable and not tap.done:
                last_at = time.monotonic()
                try:
                    tap.feed(data)
                except MalformedStreamError:  # its own way with events, which is the client's to read
                    readable = False
            if not first_at and tap.said_something:
                first_at = time.monotonic()
                record.ttft_s = first_at - self._began
            outgoing.write(data)

        record.status, record.outcome = answer.status, Outcome.BROKEN
        outgoing.start(answer.status, names.from_outside(answer.raw_headers))
        outgoing.pace(answer)
        try:
            await answer.pipe(pass_on, self._parts.settings.timeouts.token_gap_s)
        except PodFault as fault:
            self._broken(tap, record, fault)
            return None, None
        finally:
            outgoing.pace(None)
            self._count(record, tap.usage)
        if readable and (tap.error is not None or not tap.done):
            word = "error_event" if tap.error is not None else "reset"
            self._parts.observer.fault(f"outside_stream_{word}", self._proxy.url, record.request_id, tap.error or "")
            outgoing.end()
            return None, None
        outgoing.end()
        if record.output_tokens and record.output_tokens > 1:
            record.tpot_s = (last_at - first_at) / (record.output_tokens - 1)
        record.outcome = Outcome.OK
        return self._result(intake, record, tap.usage, tap.reply_head, tap.reasoned), tap.response_id

    def _broken(self, tap: Tap, record: RequestRecord, fault: PodFault) -> None:
        self._parts.observer.fault(f"outside_stream_{fault.word}", self._proxy.url, record.request_id, fault.detail)
        self._outgoing.write(tap.error_event(f"The proxy's stream broke ({fault.word}).", "upstream_error", 502))
        self._outgoing.end()

    def _count(self, record: RequestRecord, usage: Usage | None) -> None:
        if usage is not None:
            record.prompt_tokens, record.output_tokens = usage.prompt_tokens, usage.output_tokens
            record.cached_tokens = usage.cached_tokens

    def _result(
        self, intake: Intake, record: RequestRecord, usage: Usage | None, reply_head: bytes | None, reasoned: bool
    ) -> TurnResult:
        self._count(record, usage)
        return TurnResult(
            prefill=None,
            decode=self._proxy.url,
            epoch=0,
            route=Route.PD,
            prompt_tokens=usage.prompt_tokens if usage else intake.request.prompt_tokens,
            output_tokens=usage.output_tokens if usage else 0,
            reply_head=reply_head,
            prompt_bytes=intake.prompt_bytes,
            reasoned=reasoned,
        )


def _outcome_of(status: int) -> Outcome:
    if status < 400:
        return Outcome.OK
    return Outcome.REJECTED if status < 500 else Outcome.FAILED
