"""Token counts in an answer: read them, and make them what one plain vLLM would have said.

Rule of this room: the client is billed by `usage`. On the prefill-decode path D counts what came over the wire
as it likes, so P's `prompt_tokens_details` stands in for D's; everything else in `usage` stays D's.
"""

from __future__ import annotations

import msgspec

from gateway.wire.fields import NULL, Fields, given, join, split

_DETAILS = "prompt_tokens_details"


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class UsageObject(msgspec.Struct):
    """What the gateway reads of a `usage` object (vLLM `serve/engine/protocol.py`, UsageInfo)."""

    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _OutputDetails | None = None


class Usage(msgspec.Struct):
    """What an answer counts.

    cached_tokens: of the prompt, found in the pod's prefix cache; null and absent mean 0. reasoned: some of the answer
    was reasoning, shown or not. prompt_tokens_details: None where the pod says nothing of cached tokens.
    """

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    reasoned: bool = False
    prompt_tokens_details: _Details | None = None


_decoder = msgspec.json.Decoder(UsageObject | None)


def read_usage(value: msgspec.Raw | None) -> Usage | None:
    """Decode a `usage` object; None when it is absent, null or malformed."""
    if value is None:
        return None
    try:
        return usage_of(_decoder.decode(value))
    except msgspec.DecodeError:
        return None


def usage_of(said: UsageObject | None) -> Usage | None:
    """The counts of a decoded `usage`."""
    if said is None:
        return None
    prompt, details, thought = said.prompt_tokens, said.prompt_tokens_details, said.completion_tokens_details
    cached = 0 if details is None else details.cached_tokens or 0
    reasoned = thought is not None and bool(thought.reasoning_tokens)
    return Usage(prompt, said.completion_tokens or 0, min(cached, prompt), reasoned, details)


def counted(prompt: int, output: int, cached: int, reasoning: int = 0) -> Usage:
    """The usage of a dialect that has other names for it."""
    return Usage(prompt, output, min(cached, prompt), bool(reasoning), _Details(cached))


class PrefillDetails(msgspec.Struct):
    """P's `prompt_tokens_details` as it sent it: `raw` is None where P said null or nothing, or has not answered yet.

    In the other dialects what stands for it: the whole `usage` (messages), `input_tokens_details` (responses).
    """

    raw: msgspec.Raw | None

    @classmethod
    def of(cls, usage: msgspec.Raw | None) -> PrefillDetails:
        """Take the details out of P's `usage`."""
        return cls(given(_split(usage), _DETAILS))

    def put_into(self, usage: msgspec.Raw, *, keep_null: bool) -> msgspec.Raw:
        """D's `usage` with P's details; the very same object where they say so already.

        keep_null: whole answers spell out what is missing as null, stream chunks leave it out
        (vLLM `chat_completion/serving.py`: `exclude_none` on the final usage chunk only).
        """
        fields = _split(usage)
        theirs, ours = fields.get(_DETAILS), self.raw
        if ours is None:
            ours = NULL if keep_null and theirs is not None else None
        elif not keep_null:
            ours = _without_nulls(ours)
        if ours == theirs:
            return usage
        if ours is None:
            del fields[_DETAILS]
        else:
            fields[_DETAILS] = ours
        return msgspec.Raw(join(fields))


def _without_nulls(details: msgspec.Raw) -> msgspec.Raw:
    if b"null" not in bytes(details):
        return details
    return msgspec.Raw(join({name: value for name, value in _split(details).items() if value != NULL}))


def _split(usage: msgspec.Raw | None) -> Fields:
    if usage is None:
        return {}
    try:
        return split(usage)
    except msgspec.DecodeError:
        return {}
