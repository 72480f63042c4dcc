"""Taking a request in: read it, recognise its conversation, gather what the decision needs.

Rule of this room: everything here is done before a pod is asked. It waits for the client's body, and some milliseconds
at most for the state that gateways share.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass

from gateway.core.chains import Chain, MessageChain, TextChain, root_of
from gateway.core.conversations import Recognition, key_of_id
from gateway.core.decide import Request
from gateway.core.estimates import prompt_tokens
from gateway.core.weights import Weights, parse_weights
from gateway.net import headers as names
from gateway.net.exchange import Incoming
from gateway.net.parts import Parts
from gateway.net.records import RequestRecord
from gateway.wire import legs
from gateway.wire.contract import whole_reason
from gateway.wire.endpoints import Endpoint
from gateway.wire.errors import BadRequestError
from gateway.wire.fields import Fields, integer_of, parse, string_of, value_of
from gateway.wire.prompts import MessagesPrompt, Prompt, TextPrompt, begins_with_reply, reply_head
from gateway.wire.readback import has_only_text


@dataclass(frozen=True, slots=True)
class Intake:
    """A request that is ready to be decided.

    fields: the client's body, less what must not reach a pod.
    prompt_bytes: the size of its prompt, from which its tokens were estimated.
    tenant: who asks, as a hash.
    named: the client gave its conversation an id.
    """

    fields: Fields
    model: str
    tenant: bytes
    prompt_bytes: int
    chain: Chain | None
    recognition: Recognition
    request: Request
    named: bool

    @property
    def session_id(self) -> str:
        """The conversation's key as the pods get it."""
        return self.recognition.conversation.key.hex()


async def take_in(parts: Parts, endpoint: Endpoint, incoming: Incoming, record: RequestRecord) -> Intake:
    """Read and recognise a request. Raises BadRequestError, BodyTooLargeError."""
    clean = legs.without_handover(parse(incoming.body))
    if clean.removed:
        parts.observer.fault("client_handover", None, record.request_id, f"dropped {', '.join(clean.removed)}")
    fields, now_s = clean.fields, time.monotonic()
    model = string_of(fields, "model") or ""
    credential = incoming.headers.get("Authorization", "")
    weights = _weights(parts, incoming, credential)
    if parts.settings.isolate_tenants:
        fields = legs.isolated(fields, credential)
    root = root_of(credential, model, string_of(fields, "cache_salt") or "")
    chain = _chain(root, endpoint.read_prompt(fields))
    explicit_id = _explicit_id(incoming, fields)
    if parts.shared is not None:
        await parts.shared.consult(None if explicit_id is None else key_of_id(root, explicit_id), chain)
        now_s = time.monotonic()
    recognition = parts.store.recognise(root, explicit_id, chain, secrets.token_bytes(16), now_s)
    if recognition.parent is not None:
        parts.residency.join(recognition.conversation.key, recognition.parent)
    prompt_bytes = len(bytes(fields.get(endpoint.prompt_field, b"")))
    tenant = root_of(credential)
    parts.rate.count(now_s)
    request = Request(
        prompt_tokens=prompt_tokens(recognition, model, prompt_bytes, parts.bytes_per_token),
        whole=whole_reason(endpoint.api, fields),
        output_tokens=_output_tokens(parts, recognition, tenant, fields),
        rate=parts.rate.per_second(now_s) + (parts.shared.others_rate if parts.shared is not None else 0.0),
        weights=weights,
        decode_max_in_flight=parts.settings.decode_max_in_flight,
        min_resident_share=parts.settings.min_resident_share,
        readback=parts.settings.readback and has_only_text(endpoint.api, fields),
    )
    record.stream = legs.wants_stream(fields)
    record.turn, record.kind = recognition.turn, recognition.kind
    record.conversation = recognition.conversation.key.hex()
    named = explicit_id is not None
    return Intake(legs.without_session(fields), model, tenant, prompt_bytes, chain, recognition, request, named)


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


def _weights(parts: Parts, incoming: Incoming, credential: str) -> Weights:
    settings = parts.settings.weights
    asked = incoming.headers.get(names.WEIGHTS)
    if asked is not None and settings.allow_request:
        try:
            return parse_weights(asked)
        except ValueError as error:
            raise BadRequestError(f"{names.WEIGHTS}: {error}.", param=names.WEIGHTS) from None
    if settings.tenants:
        key = credential.removeprefix("Bearer ").strip()
        return settings.tenants.get(hashlib.sha256(key.encode()).hexdigest(), settings.default)
    return settings.default


def _output_tokens(parts: Parts, recognition: Recognition, tenant: bytes, fields: Fields) -> int:
    limit = integer_of(fields, "max_completion_tokens") or integer_of(fields, "max_tokens")
    return parts.outputs.expect(
        recognition.conversation.recent_outputs,
        tenant,
        limit,
        min_tokens=integer_of(fields, "min_tokens") or 0,
        exact=value_of(fields, "ignore_eos") is True,
    )
