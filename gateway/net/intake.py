"""Taking a request in: read it, recognise its conversation, gather what the decision needs.

Rule of this room: everything here is done before a pod is asked. It waits for the client's body, and some milliseconds
at most for the state that gateways share.
"""

from __future__ import annotations

import hashlib
import os
import time

import msgspec

from gateway.core.chains import Chain, MessageChain, TextChain, root_of
from gateway.core.conversations import Recognition, key_of_id
from gateway.core.decide import Request
from gateway.core.estimates import prompt_tokens
from gateway.core.links import link_key
from gateway.core.tenants import Tenant
from gateway.core.weights import Weights, parse_weights
from gateway.net import headers as names
from gateway.net.exchange import Headers, Incoming
from gateway.net.keys import key_of, others_exist, tenant_of
from gateway.net.parts import Parts
from gateway.net.readback import offered
from gateway.net.records import RequestRecord
from gateway.net.tenancy import check_model
from gateway.wire import legs
from gateway.wire.contract import Api, whole_reason
from gateway.wire.endpoints import Endpoint
from gateway.wire.errors import BadRequestError, UnknownResponseError
from gateway.wire.fields import Fields, integer_of, parse, string_of, value_of
from gateway.wire.prompts import MessagesPrompt, Prompt, TextPrompt, begins_with_reply, reply_head
from gateway.wire.prompts_responses import previous_response

_RESPONSES = Api.RESPONSES
"""Python 3.11 takes ten times as long for a member of an enum as for a global."""

_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


class Intake(msgspec.Struct, frozen=True):
    """A request that is ready to be decided.

    fields: the client's body, less what must not reach a pod. headers: what all its legs begin with (`names.to_pods`).
    prompt_bytes: the size of its prompt, from which its tokens were estimated.
    tenant: who asks, as a hash.
    session_id: the conversation's key as the pods get it.
    named: the client gave its conversation an id.
    roots: under which the id of its answer can be found again: with model and salt, and by who asks alone.
    asker: the tenant as the tenants file has it, None where there is none.
    """

    fields: Fields
    model: str
    tenant: bytes
    prompt_bytes: int
    chain: Chain | None
    recognition: Recognition
    request: Request
    session_id: str
    named: bool
    roots: tuple[bytes, bytes]
    headers: Headers
    asker: Tenant | None = None


async def take_in(parts: Parts, endpoint: Endpoint, incoming: Incoming, record: RequestRecord) -> Intake:
    """Read and recognise a request. Raises BadRequestError, BodyTooLargeError, UnknownModelError."""
    clean = legs.without_handover(parse(incoming.body))
    if clean.removed:
        parts.observer.fault("client_handover", None, record.request_id, f"dropped {', '.join(clean.removed)}")
    fields, settings, now_s = clean.fields, parts.settings, time.monotonic()
    model = string_of(fields, "model") or ""
    credential = tenant_of(incoming)
    asker = None if parts.tenancy is None else parts.tenancy.of(incoming)
    if asker is not None:
        check_model(asker, model)
    weights = _weights(parts, incoming, asker)
    if not settings.allow_client_priority:
        fields.pop("priority", None)
    isolated = settings.isolate_tenants if asker is None or asker.isolate is None else asker.isolate
    if isolated:
        fields = legs.isolated(fields, credential)
    root = root_of(credential, model, string_of(fields, "cache_salt") or "")
    chain = _chain(root, endpoint.read_prompt(fields))
    explicit_id = _explicit_id(incoming, fields)
    previous = previous_response(fields) if endpoint.api is _RESPONSES else None
    others_rate, shared = 0.0, parts.shared
    if shared is not None:
        link = None if previous is None else link_key(root, previous)
        await shared.consult(None if explicit_id is None else key_of_id(root, explicit_id), chain, link)
        others_rate, now_s = shared.others_rate, time.monotonic()
    tenant = root_of(credential)
    only = None if previous is None else _keeper(parts, incoming, (root, tenant), previous)
    recognition = parts.store.recognise(root, explicit_id, chain, os.urandom(16), now_s, previous)
    conversation = recognition.conversation
    if recognition.parent is not None:
        parts.residency.join(conversation.key, recognition.parent)
    prompt_bytes = len(fields.get(endpoint.prompt_field, b""))
    parts.rate.count(now_s)
    request = Request(
        prompt_tokens=prompt_tokens(recognition, model, prompt_bytes, parts.bytes_per_token),
        whole=whole_reason(endpoint.api, fields),
        output_tokens=parts.outputs.expect(
            conversation.recent_outputs,
            tenant,
            _output_limit(fields),
            min_tokens=integer_of(fields, "min_tokens") or 0,
            exact="ignore_eos" in fields and value_of(fields, "ignore_eos") is True,
        ),
        rate=parts.rate.per_second(now_s) + others_rate,
        weights=weights,
        decode_max_in_flight=settings.decode_max_in_flight,
        min_resident_share=settings.min_resident_share,
        readback=offered(parts, endpoint.api, fields),
        only=only,
        decode_max_tokens=settings.admission.decode_tokens,
    )
    record.stream = legs.wants_stream(fields)
    record.turn, record.kind = recognition.turn, recognition.kind
    record.conversation = conversation.key.hex()
    record.estimated_tokens = request.prompt_tokens
    return Intake(
        legs.without_session(fields),
        model,
        tenant,
        prompt_bytes,
        chain,
        recognition,
        request,
        record.conversation,
        named=explicit_id is not None,
        roots=(root, tenant),
        headers=names.to_pods(incoming.header_items()),
        asker=asker,
    )


def _keeper(parts: Parts, incoming: Incoming, roots: tuple[bytes, bytes], response_id: str) -> str | None:
    """The pod that has that answer in memory, None when nobody knows. Raises UnknownResponseError."""
    known = (parts.store.links.find(root, response_id) for root in roots)
    link = next((found for found in known if found is not None), None)
    if link is None and others_exist(incoming, parts.settings.isolate_tenants):
        raise UnknownResponseError
    return None if link is None else link.pod


def _explicit_id(incoming: Incoming, fields: Fields) -> str | None:
    for name in names.CONVERSATION_HEADERS:
        if value := incoming.headers.get(name):
            return value
    return string_of(fields, "conversation_id") or string_of(fields, "session_id") or None


def _chain(root: bytes, prompt: Prompt) -> Chain | None:
    if isinstance(prompt, MessagesPrompt):
        if not prompt.digests:
            return None
        return MessageChain(root, prompt.digests, prompt.reply_heads, prompt.answers, prompt.thoughts)
    if isinstance(prompt, TextPrompt):
        if not prompt.is_text:
            return TextChain(root, prompt.data, None)
        return TextChain(root, prompt.data, begins_with_reply, reply_head)
    return None


def _weights(parts: Parts, incoming: Incoming, asker: Tenant | None = None) -> Weights:
    """The client's own as it says them; else those set for it, as the targets move them."""
    settings = parts.settings.weights
    asked = incoming.headers.get(names.GIVEN_WEIGHTS)
    if asked is not None and settings.allow_request:
        try:
            return parse_weights(asked)
        except ValueError as error:
            raise BadRequestError(f"{names.WEIGHTS}: {error}.", param=names.WEIGHTS) from None
    found = settings.default
    if settings.tenants:
        caller, tenants = incoming.caller, settings.tenants
        if caller is None:
            found = tenants.get(hashlib.sha256((key_of(incoming) or "").encode()).hexdigest(), settings.default)
        else:
            found = tenants.get(caller.tenant) or tenants.get(caller.key_hash) or settings.default
    if asker is not None and asker.weights is not None and found is settings.default:
        found = asker.weights
    return found if parts.slo is None else parts.slo.shifted(found)


def _output_limit(fields: Fields) -> int | None:
    for name in _LIMITS:
        if name in fields and (found := integer_of(fields, name)):
            return found
    return None
