"""Conversations: who is talking, which turn it is, and where its KV was left.

Rule of this room: one prompt falls on one conversation, by explicit id or by the longest earlier prompt it
extends. Two conversations that merely begin alike never share a record; a branch gets a copy. What a request
changes, it changes when it ends well; a turn that failed leaves no trace.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import xxhash

from gateway.core.chains import Chain
from gateway.core.outputs import add_recent

MAX_TRACES = 64
"""Earlier turns of one conversation that can still be branched from."""

MAX_HOMES = 4
"""Decode pods of one conversation that are looked at for what they still hold of it."""

MAX_ALIKE = 32
"""Conversations that began with the same words and can still be told apart by their first reply."""


class Trace(msgspec.Struct, eq=False):
    """One finished turn, findable by the hash of its prompt.

    prompt_tokens, total_tokens: of that turn, as the pod counted them (total includes the reply).
    reply_head: digest of the reply's first characters, None when it was not seen.
    """

    conversation: Conversation
    turn: int
    prompt_hash: bytes
    joint: tuple[bytes, int] | None
    prompt_tokens: int
    total_tokens: int
    reply_head: bytes | None


class Conversation(msgspec.Struct, eq=False):
    """One conversation.

    key: 16 bytes; sent to the pods as X-Session-ID in hex.
    turn: the last turn that ended well, 0 before the first.
    prefill, decode: URLs of the pods that served it last (decode may be a replica).
    homes: the decode pods that may hold some of it, the last one first.
    epoch: the decode pod's epoch then.
    context_tokens: of its last turn, prompt and reply; where their KV lies now is `residency`'s business.
    pending: its requests in flight.
    last_route: how its last turn went, "pd" or "local".
    recent_outputs: tokens of its last answers.
    prompt_bytes, prompt_tokens: of its last prompt, in the request's body and as the pod counted them.
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
    traces: list[Trace] = msgspec.field(default_factory=list)


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
    """What a turn that ended well left behind. Tokens as the pod counted them, 0 when it did not say."""

    prefill: str | None
    decode: str
    epoch: int
    route: str
    prompt_tokens: int
    output_tokens: int
    reply_head: bytes | None
    prompt_bytes: int = 0


@dataclass
class ConversationStore:
    """All conversations, bounded by count and by age.

    max_conversations: the least recently used goes first.
    ttl_s: seconds after its last request at which a conversation is forgotten.
    on_forget: told the key of every conversation that is dropped.
    """

    max_conversations: int
    ttl_s: float
    on_forget: Callable[[bytes], None] | None = None
    _by_key: OrderedDict[bytes, Conversation] = field(default_factory=OrderedDict)
    _by_prompt: dict[bytes, list[Trace]] = field(default_factory=dict)
    _lengths: dict[bytes, dict[int, int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: bytes) -> Conversation | None:
        """The conversation of that key, untouched."""
        return self._by_key.get(key)

    def recognise(
        self, root: bytes, explicit_id: str | None, chain: Chain | None, fresh_key: bytes, now_s: float
    ) -> Recognition:
        """Find or make the conversation of a request, and mark it as seen now.

        root: of (tenant, model, cache salt). explicit_id: the client's own, wins over the chain.
        fresh_key: 16 random bytes, the key should this be a new conversation without an id.
        """
        self._forget_old(now_s)
        if explicit_id is not None:
            return self._by_id(xxhash.xxh3_128_digest(root + b"id" + explicit_id.encode()), chain, now_s)
        if chain is not None:
            found = self._by_chain(chain, fresh_key, now_s)
            if found is not None:
                return found
        return Recognition(self._add(Conversation(fresh_key, now_s)), Kind.NEW, 1)

    def begin(self, conversation: Conversation) -> None:
        """A request of this conversation goes out."""
        conversation.pending += 1

    def bind(self, conversation: Conversation, prefill: str | None, decode: str) -> None:
        """Reserve the pods for a conversation that has none yet, so that its next request goes there too."""
        if conversation.turn == 0 and conversation.decode is None:
            conversation.prefill, conversation.decode = prefill, decode
            conversation.homes = (decode,)

    def fail(self, conversation: Conversation) -> None:
        """A request of this conversation ended badly: nothing is learned, a conversation of nothing is dropped."""
        conversation.pending -= 1
        if conversation.turn == 0 and conversation.pending == 0:
            self._remove(conversation)

    def finish(self, recognition: Recognition, chain: Chain | None, result: TurnResult) -> None:
        """A request ended well: the turn counts, and its prompt can be found again."""
        conversation = recognition.conversation
        conversation.pending -= 1
        total = result.prompt_tokens + result.output_tokens
        conversation.turn = max(conversation.turn, recognition.turn)
        conversation.prefill = result.prefill or conversation.prefill
        conversation.decode, conversation.epoch = result.decode, result.epoch
        others = (url for url in conversation.homes if url != result.decode)
        conversation.homes = (result.decode, *others)[:MAX_HOMES]
        conversation.context_tokens = total
        conversation.last_route = result.route
        conversation.prompt_bytes, conversation.prompt_tokens = result.prompt_bytes, result.prompt_tokens
        if result.output_tokens:
            conversation.recent_outputs = add_recent(conversation.recent_outputs, result.output_tokens)
        if chain is None or self._by_key.get(conversation.key) is not conversation:
            return
        for trace in [t for t in conversation.traces if t.prompt_hash == chain.whole]:
            self._remove_trace(trace)
        if len(conversation.traces) >= MAX_TRACES:
            self._remove_trace(conversation.traces[0])
        self._add_trace(
            Trace(
                conversation,
                recognition.turn,
                chain.whole,
                chain.joint(),
                result.prompt_tokens,
                total,
                result.reply_head,
            )
        )

    def _by_id(self, key: bytes, chain: Chain | None, now_s: float) -> Recognition:
        conversation = self._by_key.get(key)
        if conversation is None:
            return Recognition(self._add(Conversation(key, now_s)), Kind.NEW, 1)
        self._touch(conversation, now_s)
        last = conversation.traces[-1] if conversation.traces else None
        if chain is not None and last is not None and last.prompt_hash == chain.whole:
            return Recognition(conversation, Kind.REPEAT, last.turn, last.prompt_tokens)
        shared_tokens = self._shared_with(conversation, chain)
        return Recognition(conversation, Kind.NEXT, conversation.turn + 1, shared_tokens)

    def _shared_with(self, conversation: Conversation, chain: Chain | None) -> int:
        """How much of a conversation a prompt begins with; all of it where there is nothing to compare."""
        if chain is None or not conversation.traces:
            return conversation.context_tokens
        for length, prompt_hash in chain.prefixes(self._lengths):
            for trace in self._by_prompt.get(prompt_hash, ()):
                if trace.conversation is conversation:
                    goes_on = trace.reply_head is None or chain.reply_follows(length, trace.reply_head)
                    return trace.total_tokens if goes_on else trace.prompt_tokens
        return 0

    def _by_chain(self, chain: Chain, fresh_key: bytes, now_s: float) -> Recognition | None:
        for length, prompt_hash in chain.prefixes(self._lengths):
            traces = self._by_prompt.get(prompt_hash)
            if not traces:
                continue
            if length == chain.length:
                if not chain.has_replies or traces[-1].turn == 1:
                    return None
                return self._repeat(traces, fresh_key, now_s)
            return self._extend(chain, length, traces, fresh_key, now_s)
        return None

    def _repeat(self, traces: list[Trace], fresh_key: bytes, now_s: float) -> Recognition:
        trace = traces[-1]
        conversation = trace.conversation
        if len(traces) == 1 and conversation.pending == 0 and conversation.traces[-1] is trace:
            self._touch(conversation, now_s)
            return Recognition(conversation, Kind.REPEAT, trace.turn, trace.prompt_tokens)
        return self._branch(trace, trace.turn, trace.prompt_tokens, fresh_key, now_s)

    def _extend(self, chain: Chain, length: int, traces: list[Trace], fresh_key: bytes, now_s: float) -> Recognition:
        fitting = [
            trace
            for trace in reversed(traces)
            if trace.reply_head is None or chain.reply_follows(length, trace.reply_head)
        ]
        for trace in fitting:
            conversation = trace.conversation
            if conversation.traces[-1] is trace and conversation.pending == 0:
                self._touch(conversation, now_s)
                return Recognition(conversation, Kind.NEXT, trace.turn + 1, trace.total_tokens)
        if fitting:
            return self._branch(fitting[0], fitting[0].turn + 1, fitting[0].total_tokens, fresh_key, now_s)
        return self._branch(traces[-1], traces[-1].turn + 1, traces[-1].prompt_tokens, fresh_key, now_s)

    def _branch(self, trace: Trace, turn: int, shared_tokens: int, fresh_key: bytes, now_s: float) -> Recognition:
        parent = trace.conversation
        copy = Conversation(
            key=fresh_key,
            last_seen_s=now_s,
            prefill=parent.prefill,
            decode=parent.decode,
            homes=parent.homes,
            epoch=parent.epoch,
            context_tokens=shared_tokens,
            last_route=parent.last_route,
            recent_outputs=parent.recent_outputs,
        )
        return Recognition(self._add(copy), Kind.BRANCH, turn, shared_tokens, parent.key)

    def _add(self, conversation: Conversation) -> Conversation:
        self._by_key[conversation.key] = conversation
        while len(self._by_key) > self.max_conversations:
            self._remove(next(iter(self._by_key.values())))
        return conversation

    def _touch(self, conversation: Conversation, now_s: float) -> None:
        conversation.last_seen_s = now_s
        self._by_key.move_to_end(conversation.key)

    def _forget_old(self, now_s: float) -> None:
        while self._by_key:
            oldest = next(iter(self._by_key.values()))
            if now_s - oldest.last_seen_s <= self.ttl_s:
                return
            self._remove(oldest)

    def _remove(self, conversation: Conversation) -> None:
        if self._by_key.get(conversation.key) is conversation:
            del self._by_key[conversation.key]
            if self.on_forget is not None:
                self.on_forget(conversation.key)
        for trace in list(conversation.traces):
            self._remove_trace(trace)

    def _add_trace(self, trace: Trace) -> None:
        trace.conversation.traces.append(trace)
        alike = self._by_prompt.setdefault(trace.prompt_hash, [])
        alike.append(trace)
        if trace.joint is not None:
            block, offset = trace.joint
            offsets = self._lengths.setdefault(block, {})
            offsets[offset] = offsets.get(offset, 0) + 1
        if len(alike) > MAX_ALIKE:
            self._remove_trace(alike[0])

    def _remove_trace(self, trace: Trace) -> None:
        trace.conversation.traces.remove(trace)
        _drop(self._by_prompt, trace.prompt_hash, trace)
        if trace.joint is not None:
            block, offset = trace.joint
            offsets = self._lengths[block]
            offsets[offset] -= 1
            if not offsets[offset]:
                del offsets[offset]
            if not offsets:
                del self._lengths[block]


def _drop(index: dict[bytes, list[Trace]], key: bytes, trace: Trace) -> None:
    traces = index[key]
    traces.remove(trace)
    if not traces:
        del index[key]
