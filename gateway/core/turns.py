"""What is known of conversations, and how a request relates to it.

Rule of this room: records only; who makes and changes them is `conversations`. There are hundreds of thousands of them,
so the garbage collector does not walk them (`gc=False`): a conversation and its traces point at each other, and it is
freed because whoever forgets it takes its traces away.
"""

from __future__ import annotations

import enum

import msgspec


class Trace(msgspec.Struct, eq=False, gc=False):
    """One finished turn, findable by the hash of its prompt.

    prompt_tokens, total_tokens: of that turn, as the pod counted them (total includes the reply).
    reply_head: digest of the reply's first characters, None when it was not seen.
    order: numbers the traces of a store as they came.
    reasoned: some of the reply was reasoning, which later prompts leave out as a rule.
    thought: the first message of the prompt that had its reasoning with it, -1 for none.
    continued: another gateway has gone on from here, so the next turn that falls on it is a branch.
    """

    conversation: Conversation
    turn: int
    prompt_hash: bytes
    joint: tuple[bytes, int] | None
    prompt_tokens: int
    total_tokens: int
    reply_head: bytes | None
    order: int = 0
    continued: bool = False
    reasoned: bool = False
    thought: int = -1


class Conversation(msgspec.Struct, eq=False, gc=False):
    """One conversation.

    key: 16 bytes; sent to the pods as X-Session-ID in hex.
    turn: the last turn that ended well, 0 before the first.
    prefill, decode: URLs of the pods that served it last (decode may be a replica).
    homes: the decode pods that may hold some of it, the last one first.
    epoch: the decode pod's epoch then.
    context_tokens: of its last turn what the next prompt can show: prompt and reply, but no reply that has reasoning
        in it. Where their KV lies now is `residency`'s business.
    pending: its requests in flight.
    last_route: how its last turn went, "pd" or "local".
    recent_outputs: tokens of its last answers.
    prompt_bytes, prompt_tokens: of its last prompt, in the request's body and as the pod counted them.
    responses: keys of its answers that can be gone on from by their id.
    """

    key: bytes
    last_seen_s: float
    turn: int = 0
    prefill: str | None = None
    decode: str | None = None
    homes: tuple[str, ...] = ()
    epoch: int = 0
    context_tokens: int = 0
    pending: int = 0
    last_route: str | None = None
    recent_outputs: tuple[int, ...] = ()
    prompt_bytes: int = 0
    prompt_tokens: int = 0
    responses: tuple[bytes, ...] = ()
    traces: tuple[Trace, ...] = ()


class Kind(enum.StrEnum):
    """How a request relates to what is known."""

    NEW = "new"
    NEXT = "next"
    REPEAT = "repeat"
    BRANCH = "branch"


class Recognition(msgspec.Struct, frozen=True):
    """The conversation a request falls on, and the turn it would be.

    shared_tokens: of the conversation's context, how many this prompt extends; more than that it cannot reuse.
    parent: key of the conversation it branched off.
    """

    conversation: Conversation
    kind: Kind
    turn: int
    shared_tokens: int = 0
    parent: bytes | None = None


class TurnResult(msgspec.Struct, frozen=True):
    """What a turn that ended well left behind. Tokens as the pod counted them, 0 when it did not say.

    reasoned: some of the reply was reasoning.
    """

    prefill: str | None
    decode: str
    epoch: int
    route: str
    prompt_tokens: int
    output_tokens: int
    reply_head: bytes | None
    prompt_bytes: int = 0
    reasoned: bool = False
