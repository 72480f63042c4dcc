"""Requests that are not routed by turns: any healthy pod answers them, or the one that has the response in memory.

Rule of this room: method, query and body as they came, content type of uploads included; what would name blocks on a
pod is taken out both ways.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.chains import root_of
from gateway.core.estimates import START_BYTES_PER_TOKEN
from gateway.core.links import link_key
from gateway.core.pods import Fleet, Pod, Role, Seat
from gateway.net import headers as names
from gateway.net.exchange import Incoming, Outgoing
from gateway.net.keys import others_exist, tenant_of
from gateway.net.outcome import Finished, no_pod
from gateway.net.parts import Parts
from gateway.net.records import Outcome, RequestRecord
from gateway.net.relay import malformed
from gateway.net.tenancy import check_model
from gateway.net.upstream import PodAnswer, PodFault
from gateway.wire import legs
from gateway.wire.answers_responses import RESPONSES
from gateway.wire.errors import PodFailedError, UnknownResponseError, error_event
from gateway.wire.fields import join, string_of
from gateway.wire.framing import MalformedStreamError
from gateway.wire.paths import WORK, clean_body, model_of_form, without_offers


class Passing:
    """Passes one request on. Make one per request and await `run` or `run_of_response`."""

    def __init__(self, parts: Parts, incoming: Incoming, outgoing: Outgoing, record: RequestRecord) -> None:
        self._parts = parts
        self._incoming = incoming
        self._outgoing = outgoing
        self._record = record

    async def run(self) -> None:
        """To the least loaded pod; a prefill pod only where nothing is computed or nobody else is up."""
        body, work = self._incoming.body, self._incoming.path in WORK
        media_type = self._incoming.headers.get("content-type", "").partition(";")[0].strip().lower()
        model: str | None = None
        if media_type == "application/json":
            body, model = self._cleaned(body, isolate=work and self._parts.settings.isolate_tenants)
        elif media_type == "multipart/form-data":
            model = model_of_form(body)
        tenancy = self._parts.tenancy
        if tenancy is not None:
            asker = tenancy.of(self._incoming)
            if work or model is not None:
                check_model(asker, model or "")
            tokens = len(body) / START_BYTES_PER_TOKEN if media_type == "application/json" else 1.0
            if work and (charge := await tenancy.charge(asker, tokens)) is not None:
                tenancy.settle(charge, tokens)
        if self._parts.model_watch is not None and not self._parts.fleet.knows(model or ""):
            await self._parts.model_watch.look()
        self._parts.wake_breakers()
        pods = sorted(
            self._admitting(self._parts.fleet.serving(model or "")),
            key=lambda pod: (work and pod.role is Role.PREFILL, pod.load_tokens),
        )
        timeouts = self._parts.settings.timeouts
        await self._ask(pods, body, timeouts.unstreamed_s if work else timeouts.first_byte_s)

    async def run_of_response(self, response_id: str) -> None:
        """To the pod that gave that answer; when nobody knows which, one after the other."""
        parts, tenant = self._parts, root_of(tenant_of(self._incoming))
        if parts.shared is not None:
            await parts.shared.consult(None, None, link_key(tenant, response_id))
        link = parts.store.links.find(tenant, response_id)
        if link is None and others_exist(self._incoming, parts.settings.isolate_tenants):
            raise UnknownResponseError
        keeper = None if link is None else parts.fleet.get(link.pod)
        parts.wake_breakers()
        others = sorted(self._admitting(parts.fleet), key=lambda pod: pod.role is Role.PREFILL)
        pods = [keeper] if keeper is not None and keeper.up else others
        await self._ask(pods, self._incoming.body, parts.settings.timeouts.first_byte_s, of_response=True)

    def _admitting(self, fleet: Fleet) -> list[Pod]:
        """The pods that are up and have not failed too often of late; all that are up where every one has."""
        up = [pod for pod in fleet if pod.up]
        return [pod for pod in up if fleet.admits(pod)] or up

    def _cleaned(self, body: bytes, *, isolate: bool) -> tuple[bytes, str | None]:
        clean, fields = clean_body(body)
        if "priority" in fields and not self._parts.settings.allow_client_priority:
            del fields["priority"]
            clean = join(fields)
        if isolate and fields:
            clean = join(legs.isolated(fields, tenant_of(self._incoming)))
        return clean, string_of(fields, "model")

    async def _ask(self, pods: Sequence[Pod], body: bytes, limit_s: float, *, of_response: bool = False) -> None:
        fault: PodFault | None = None
        unknown: Finished | None = None
        for pod in pods:
            self._record.answering = pod.url
            try:
                unknown = await self._one(pod, body, limit_s, of_response=of_response)
            except PodFault as error:
                fault = error
                self._parts.notice(pod, error)
                if error.word != "local":
                    self._parts.blame(pod, error.word)
                self._parts.observer.fault(f"pass_through_{error.word}", pod.url, self._record.request_id, error.detail)
                continue
            if unknown is None:
                return
        if unknown is not None:
            self._send(unknown)
        elif fault is not None:
            raise PodFailedError(f"No pod could answer ({fault.word}).")
        else:
            raise no_pod()

    async def _one(self, pod: Pod, body: bytes, limit_s: float, *, of_response: bool) -> Finished | None:
        """Ask one pod and answer the client; a pod's 404 about a response comes back, for another may know it."""
        incoming, seat = self._incoming, Seat(pod, 1)
        headers = names.to_pod(incoming.header_items(), self._record.request_id, None)
        answer: PodAnswer | None = None
        try:
            answer = await self._parts.client.call(incoming.method, pod.url, incoming.target, headers, body, limit_s)
            if answer.status == 200 and answer.content_type == "text/event-stream":
                await self._stream(pod, answer, of_response=of_response)
                return None
            text = await answer.read(limit_s)
            if answer.status < 500:  # above, nobody knows whether it was the pod or the request
                self._parts.praise(pod)
        finally:
            seat.leave()
            if answer is not None:
                answer.close()
        text = RESPONSES.rewrite(text, None).body if of_response else without_offers(text)
        finished = Finished(answer.status, answer.raw_headers, text)
        if of_response and answer.status == 404:
            return finished
        self._send(finished)
        return None

    async def _stream(self, pod: Pod, answer: PodAnswer, *, of_response: bool) -> None:
        outgoing, record = self._outgoing, self._record
        tap = RESPONSES.tap({}, None, None) if of_response else None
        record.status, record.outcome, record.stream = answer.status, Outcome.OK, True
        outgoing.start(answer.status, names.to_client(answer.raw_headers, record.request_id))

        def pass_on(data: bytes) -> None:
            try:
                out = data if tap is None else tap.feed(data)
            except MalformedStreamError as broken:
                raise malformed(broken, outgoing.write) from None
            if out:
                outgoing.write(out)

        outgoing.pace(answer)
        try:
            await answer.pipe(pass_on, self._parts.settings.timeouts.token_gap_s)
            if tap is not None and not tap.done:
                raise PodFault("reset", "the stream ended without its last word")
        except PodFault as fault:
            record.outcome = Outcome.BROKEN
            self._parts.notice(pod, fault)
            self._parts.blame(pod, fault.word)
            self._parts.observer.fault(f"pass_through_{fault.word}", pod.url, record.request_id, fault.detail)
            make = error_event if tap is None else tap.error_event
            outgoing.write(make(f"The pod's stream broke ({fault.word}).", "upstream_error", 502))
        else:
            self._parts.praise(pod)
        finally:
            outgoing.pace(None)
        outgoing.end()

    def _send(self, answer: Finished) -> None:
        record = self._record
        record.status, record.outcome = answer.status, Outcome.OK if answer.status < 400 else Outcome.REJECTED
        self._outgoing.send(answer.status, names.to_client(answer.headers, record.request_id), answer.body)
