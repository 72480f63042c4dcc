"""Answers that come in one piece: P's, which is read and thrown away, and a pod's to an unstreamed request.

Rule of this room: a pod's hand-over parameters never reach the client, and nothing else changes but `usage`.
"""

from __future__ import annotations

import re

import msgspec

from gateway.wire.fields import NULL, Fields, given, join, split
from gateway.wire.legs import HANDOVER_FIELDS
from gateway.wire.prompts import THINK, message_head, reply_head
from gateway.wire.usage import PrefillDetails, Usage, read_usage


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    function: _Function | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    text: str | None = None
    message: _Message | None = None


_choices_decoder = msgspec.json.Decoder(list[_Choice])


class PrefillAnswer(msgspec.Struct, frozen=True):
    """What the first leg brought.

    handover: `kv_transfer_params` for the decode leg, None when P kept no blocks (a fault).
    finish_reason: "length" when P did what it was asked.
    """

    handover: msgspec.Raw | None
    usage: Usage | None
    details: PrefillDetails
    finish_reason: str | None


def read_prefill(body: bytes) -> PrefillAnswer:
    """Read P's answer; a body that is no JSON object reads as an answer without a hand-over."""
    fields = _fields(body) or {}
    usage = fields.get("usage")
    choice = _first_choice(fields)
    return PrefillAnswer(
        handover=given(fields, "kv_transfer_params"),
        usage=read_usage(usage),
        details=PrefillDetails.of(usage),
        finish_reason=choice.finish_reason if choice is not None else None,
    )


_ENGINE = re.compile(rb'"remote_engine_id"\s*:\s*"([\w.:-]{1,128}?)(?:_dp\d+)?"')


def engine_of(answer: bytes) -> bytes | None:
    """The KV engine that a pod names in its hand-over parameters, without its data-parallel rank.

    NIXL makes it up when the process starts, unless the operator sets one (vLLM `config/kv_transfer.py`, engine_id).
    Text in an answer cannot look like it: quotes in a JSON string are escaped.
    """
    found = _ENGINE.search(answer)
    return None if found is None else found[1]


class WholeAnswer(msgspec.Struct, frozen=True):
    """An unstreamed answer as the client gets it, and what it taught the gateway.

    reasoned: some of it was reasoning, which the next turn's prompt will not show.
    offer: the `kv_transfer_params` that the pod put in; they never reach the client.
    response_id: the answer's id, where a later request may go on from it.
    """

    body: bytes
    usage: Usage | None
    reply_head: bytes | None
    finish_reason: str | None
    reasoned: bool = False
    offer: msgspec.Raw | None = None
    response_id: str | None = None


def rewrite_answer(body: bytes, prefill: PrefillDetails | None) -> WholeAnswer:
    """Make an unstreamed answer presentable.

    prefill: P's cached-token details when the request went through P, else None.
    """
    fields = _fields(body)
    if fields is None:
        return WholeAnswer(body, None, None, None)
    said, offer = given(fields, "usage"), fields.get("kv_transfer_params")
    changed = hide_handover(fields)
    usage = read_usage(said)
    if prefill is not None and said is not None:
        fields["usage"] = told = prefill.put_into(said, keep_null=True)
        changed = changed or told is not said
    head, finish_reason, reasoned = _read_choice(_first_choice(fields))
    return WholeAnswer(
        body=join(fields) if changed else body,
        usage=usage,
        reply_head=head,
        finish_reason=finish_reason,
        reasoned=reasoned or (usage is not None and usage.reasoned),
        offer=None if offer == NULL else offer,
    )


def hide_handover(fields: Fields) -> bool:
    """Null a pod's hand-over parameters. True when there were any."""
    changed = False
    for name in HANDOVER_FIELDS:
        if fields.get(name, NULL) != NULL:
            fields[name] = NULL
            changed = True
    return changed


def _fields(body: bytes) -> Fields | None:
    try:
        return split(body)
    except (msgspec.DecodeError, RecursionError):
        return None


def _first_choice(fields: Fields) -> _Choice | None:
    value = fields.get("choices")
    if value is None:
        return None
    try:
        choices = _choices_decoder.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return None
    return choices[0] if choices else None


def _read_choice(choice: _Choice | None) -> tuple[bytes | None, str | None, bool]:
    """The head of its reply, why it ended, and whether it shows reasoning."""
    if choice is None:
        return None, None, False
    message = choice.message
    if message is None:
        return reply_head(choice.text or ""), choice.finish_reason, False
    content = message.content or ""
    call = message.tool_calls[0].function if message.tool_calls else None
    head = message_head(content, f"{call.name or ''}{call.arguments or ''}" if call is not None else "")
    reasoned = bool(message.reasoning or message.reasoning_content) or content.lstrip().startswith(THINK)
    return head, choice.finish_reason, reasoned
