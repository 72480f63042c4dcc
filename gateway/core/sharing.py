"""What gateways tell each other through a shared store, so that any of them can take the next turn.

Rule of this room: keys are hashes of hashes, values a conversation's record with one turn of it. Nothing is asked
that this gateway must know itself. Of two gateways that finish turns of one conversation the higher turn wins; turns
that do not follow from each other become conversations of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import xxhash

from gateway.core.chains import BLOCK_BYTES, Chain
from gateway.core.conversations import ConversationStore
from gateway.core.memory import ConversationRecord, Memory, TraceRecord, trace_of, trace_record
from gateway.core.turns import Conversation, Kind, Recognition, Trace

MAX_CANDIDATES = 32
"""Earlier prompts that one question may name, the longest first."""

MAX_BLOCKS = 64
"""Blocks of a completions prompt whose ends are asked for, the last ones first."""

MAX_VALUE_BYTES = 2048
VERSION_BYTES = 22
"""Every value begins with its turn and the time in milliseconds, as decimal digits: the greater one stays."""

_LIMIT = 10**8 - 1
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ConversationRecord)


class Entry(msgspec.Struct, frozen=True):
    """One finished turn for the shared store.

    values: by key. ends: (key, offset) of a bit to set: at which offset behind that block a prompt ended.
    """

    values: Mapping[bytes, bytes]
    ends: tuple[bytes, int] | None


class Candidate(msgspec.Struct, frozen=True):
    """An earlier prompt that another gateway may know; keys: with the very reply that follows, and with any."""

    prompt_hash: bytes
    keys: tuple[bytes, ...]


class Question(msgspec.Struct, frozen=True):
    """What to ask before a request is recognised.

    by_id: the one key to ask for, when the client named its conversation or the answer it goes on from.
    blocks: whose ends have to be known first.
    known: longest earlier prompt this gateway knows itself; only longer ones are asked for.
    """

    by_id: bytes | None
    blocks: tuple[bytes, ...]
    known: int


def question(
    store: ConversationStore, conversation_key: bytes | None, chain: Chain | None, link: bytes | None = None
) -> Question | None:
    """What has to be asked, or None when this gateway knows by itself: it has the turn right before this one, or
    there is none.

    conversation_key: when the client named its conversation. link: when it named the answer it goes on from.
    A completions prompt does not show where its earlier turns ended, so it is always asked for.
    """
    if conversation_key is None and link is not None:
        return None if store.links.get(link) is not None else Question(answer_key(link), (), 0)
    if chain is None:
        return None if conversation_key is None else Question(id_key(conversation_key), (), 0)
    if not chain.has_replies:
        return None
    blocks = chain.blocks()
    before, before_hash = _right_before(chain)
    if conversation_key is not None:
        known = store.get(conversation_key)
        last = known.traces[-1].prompt_hash if known is not None and known.traces else None
        if last is not None and (last == chain.whole or (not blocks and last == before_hash)):
            return None
        return Question(id_key(conversation_key), (), 0)
    if store.traces_of(chain.whole):
        return None
    length = _known_length(store, chain)
    if not blocks and length >= before:
        return None
    count = chain.length // BLOCK_BYTES - length // BLOCK_BYTES + 1
    return Question(None, tuple(blocks[: min(count, MAX_BLOCKS)]), length)


def candidates(asked: Question, chain: Chain, ends: Mapping[bytes, Iterable[int]]) -> list[Candidate]:
    """The earlier prompts to ask for, the longest first. ends: block → offsets where prompts ended."""
    lengths = {block: dict.fromkeys(offsets, 1) for block, offsets in ends.items()}
    found: list[Candidate] = []
    for length, prompt_hash in chain.prefixes(lengths):
        if length <= asked.known or len(found) == MAX_CANDIDATES:
            break
        if chain.may_be_answered(length):
            head = chain.reply_at(length)
            any_reply = trace_key(prompt_hash, None)
            keys = (any_reply,) if head is None else (trace_key(prompt_hash, head), any_reply)
            found.append(Candidate(prompt_hash, keys))
    return found


def entry_of(memory: Memory, recognition: Recognition, now_s: float, wall_s: float, *, named: bool) -> Entry:
    """A turn that has just ended well. named: by the client's own conversation id."""
    conversation = recognition.conversation
    values: dict[bytes, bytes] = {}
    traces = conversation.traces
    if recognition.kind is Kind.NEXT and len(traces) > 1:
        before = msgspec.structs.replace(trace_record(traces[-2]), continued=True)
        value = encode(memory.record(conversation, now_s, [before], [], just_served=True), wall_s)
        values.update(dict.fromkeys(_keys(traces[-2]), value))
    newest = traces[-1] if traces else None
    turns = [] if newest is None else [trace_record(newest)]
    value = encode(memory.record(conversation, now_s, turns, [], just_served=True), wall_s)
    if newest is not None:
        values.update(dict.fromkeys(_keys(newest), value))
    if named:
        values[id_key(conversation.key)] = value
    for link in memory.links_of(conversation)[-2:]:
        values[answer_key(link.key)] = encode(memory.record(conversation, now_s, [], [link], just_served=True), wall_s)
    ends = None if newest is None or newest.joint is None else (ends_key(newest.joint[0]), newest.joint[1])
    return Entry({key: value for key, value in values.items() if len(value) <= MAX_VALUE_BYTES}, ends)


def adopt(memory: Memory, record: ConversationRecord, prompt_hash: bytes | None, now_s: float) -> None:
    """Take in what another gateway knows. prompt_hash: the earlier prompt it was found by; None: by an id."""
    record = msgspec.structs.replace(record, age_s=0.0)
    known = memory.store.get(record.key)
    if prompt_hash is None:
        if known is None or record.turn > known.turn:
            _take_over(memory, known, record, record.traces, now_s)
        elif record.links:
            memory.put_links(record, known)
        return
    turns = [msgspec.structs.replace(turn, prompt_hash=prompt_hash, order=0) for turn in record.traces[:1]]
    if not turns:
        return
    turn = turns[0]
    if known is None or turn.turn > known.turn or turn.turn == known.turn > _newest_turn(known):
        _take_over(memory, known, record, turns, now_s)
        return
    same = next((trace for trace in known.traces if trace.prompt_hash == prompt_hash), None)
    if same is not None:
        same.continued = same.continued or turn.continued
    elif turn.continued:
        memory.store.add_trace(trace_of(turn, known), oldest=True)
    else:
        key = xxhash.xxh3_128_digest(record.key + prompt_hash)
        if memory.store.get(key) is None:
            _take_over(memory, None, msgspec.structs.replace(record, key=key), turns, now_s)


def encode(record: ConversationRecord, wall_s: float) -> bytes:
    """A value of the shared store."""
    version = f"{min(record.turn, _LIMIT):08d}{max(0, int(wall_s * 1000)):014d}"
    return version.encode() + _encoder.encode(record)


def decode(value: bytes) -> ConversationRecord | None:
    """A value of the shared store, None when it is not one of ours."""
    try:
        record = _decoder.decode(value[VERSION_BYTES:])
    except msgspec.DecodeError:
        return None
    return record if len(record.key) == 16 else None


def trace_key(prompt_hash: bytes, reply_head: bytes | None) -> bytes:
    """Where the turn with that prompt is kept, by its reply, or the last one with any reply."""
    return xxhash.xxh3_128_digest(b"turn" + prompt_hash + (reply_head or b""))


def id_key(conversation_key: bytes) -> bytes:
    """Where a conversation is kept that the client named."""
    return xxhash.xxh3_128_digest(b"id" + conversation_key)


def answer_key(link: bytes) -> bytes:
    """Where a conversation is kept by the id of one of its answers."""
    return xxhash.xxh3_128_digest(b"answer" + link)


def ends_key(block: bytes) -> bytes:
    """Where it is kept at which offsets behind a block completions prompts ended."""
    return xxhash.xxh3_128_digest(b"ends" + block)


def offsets_of(bits: bytes) -> list[int]:
    """The offsets in a bit field, which begins with the highest bit of its first byte (as SETBIT has it)."""
    number = int.from_bytes(bits, "big")
    size = 8 * len(bits)
    found = []
    while number:
        low = number & -number
        found.append(size - low.bit_length())
        number ^= low
    return found


def _keys(trace: Trace) -> tuple[bytes, ...]:
    return trace_key(trace.prompt_hash, trace.reply_head), trace_key(trace.prompt_hash, None)


def _known_length(store: ConversationStore, chain: Chain) -> int:
    """Length of the longest earlier prompt that the store has with the reply this one shows."""
    for length, prompt_hash in chain.prefixes(store.lengths):
        for trace in store.traces_of(prompt_hash):
            if trace.reply_head is None or chain.reply_follows(length, trace.reply_head):
                return length
    return 0


def _right_before(chain: Chain) -> tuple[int, bytes | None]:
    """(length, hash) of the prompt that the last reply in a chat answered."""
    for length, prompt_hash in chain.prefixes({}):
        if length < chain.length and chain.may_be_answered(length):
            return length, prompt_hash
    return 0, None


def _newest_turn(conversation: Conversation) -> int:
    """The last turn this gateway could recognise; the conversation may be known to be further on."""
    return conversation.traces[-1].turn if conversation.traces else 0


def _take_over(
    memory: Memory,
    known: Conversation | None,
    record: ConversationRecord,
    turns: Sequence[TraceRecord],
    now_s: float,
) -> None:
    """Make the conversation what the record says, and its newest turn that of the record."""
    fresh = memory.revive(record, now_s)
    conversation = fresh if known is None else known
    if known is None:
        memory.store.put(fresh)
    else:
        for field in ("turn", "prefill", "decode", "homes", "epoch", "context_tokens", "last_route"):
            setattr(known, field, getattr(fresh, field))
        for field in ("recent_outputs", "prompt_bytes", "prompt_tokens"):
            setattr(known, field, getattr(fresh, field))
    for turn in turns:
        if all(trace.prompt_hash != turn.prompt_hash for trace in conversation.traces):
            memory.store.add_trace(trace_of(msgspec.structs.replace(turn, order=0), conversation))
    memory.put_links(record, conversation)
