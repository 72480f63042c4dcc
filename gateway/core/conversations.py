"""Conversations: who is talking, which turn it is, and where its KV was left.

Rule of this room: one prompt falls on one conversation, by explicit id or by the longest earlier prompt it
extends. Two conversations that merely begin alike never share a record; a branch gets a copy. What a request
changes, it changes when it ends well; a turn that failed leaves no trace.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import xxhash

from gateway.core.chains import Chain, Lengths
from gateway.core.links import Link, Links
from gateway.core.outputs import add_recent
from gateway.core.turns import Conversation, Kind, Recognition, Trace, TurnResult

__all__ = ["Conversation", "ConversationStore", "Kind", "Recognition", "Trace", "TurnResult", "key_of_id"]

MAX_TRACES = 64
"""Earlier turns of one conversation that can still be branched from."""

MAX_HOMES = 4
"""Decode pods of one conversation that are looked at for what they still hold of it."""

MAX_ALIKE = 32
"""Conversations that began with the same words and can still be told apart by their first reply."""


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
    _by_prompt: dict[bytes, tuple[Trace, ...]] = field(default_factory=dict)
    _lengths: dict[bytes, dict[int, int]] = field(default_factory=dict)
    _links: Links = field(default_factory=Links)
    _last_order: int = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: bytes) -> Conversation | None:
        """The conversation of that key, untouched."""
        return self._by_key.get(key)

    def keys(self) -> list[bytes]:
        """Of all conversations, in no order, which takes a tenth of the time."""
        return list(dict.keys(self._by_key))

    @property
    def links(self) -> Links:
        """Answers by their id."""
        return self._links

    @property
    def lengths(self) -> Lengths:
        """Where earlier prompts without joints ended."""
        return self._lengths

    def traces_of(self, prompt_hash: bytes) -> Sequence[Trace]:
        """The turns that ended well with that very prompt, the oldest first."""
        return self._by_prompt.get(prompt_hash, ())

    def put(self, conversation: Conversation) -> None:
        """Take a conversation in that was made elsewhere, as the most recently used one."""
        self._add(conversation)

    def add_trace(self, trace: Trace, *, oldest: bool = False) -> None:
        """Take a turn in that was made elsewhere. oldest: it came before those its conversation has here."""
        conversation = trace.conversation
        if len(conversation.traces) >= MAX_TRACES:
            if oldest:
                return
            self._remove_trace(conversation.traces[0])
        if not trace.order:
            trace.order = self._last_order + 1
        self._last_order = max(self._last_order, trace.order)
        self._add_trace(trace)
        if oldest and trace in conversation.traces:
            conversation.traces = (trace, *_without(conversation.traces, trace))

    def sort_alike(self) -> None:
        """Put the turns with the same prompt in order, after traces were added out of it."""
        for prompt_hash, alike in self._by_prompt.items():
            if len(alike) > 1:
                self._by_prompt[prompt_hash] = tuple(sorted(alike, key=lambda trace: trace.order))

    def recognise(
        self,
        root: bytes,
        explicit_id: str | None,
        chain: Chain | None,
        fresh_key: bytes,
        now_s: float,
        previous_response: str | None = None,
    ) -> Recognition:
        """Find or make the conversation of a request, and mark it as seen now.

        root: of (tenant, model, cache salt). explicit_id: the client's own, wins over the chain.
        fresh_key: 16 random bytes, the key should this be a new conversation without an id.
        previous_response: id of the answer it goes on from, for a request that is without history; hence no chain.
        """
        self._forget_old(now_s)
        if explicit_id is not None:
            return self._by_id(key_of_id(root, explicit_id), chain, now_s)
        if previous_response is not None:
            link = self._links.find(root, previous_response)
            if link is not None:
                return self._by_link(link, fresh_key, now_s)
        elif chain is not None:
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
            conversation.homes = _only(decode)

    def fail(self, conversation: Conversation) -> None:
        """A request of this conversation ended badly: nothing is learned, a conversation of nothing is dropped."""
        conversation.pending -= 1
        if conversation.turn == 0 and conversation.pending == 0:
            self._remove(conversation)

    def finish(self, recognition: Recognition, chain: Chain | None, result: TurnResult) -> None:
        """A request ended well: the turn counts, and its prompt can be found again."""
        conversation, turn = recognition.conversation, recognition.turn
        conversation.pending -= 1
        decode, prompt_tokens, output_tokens = result.decode, result.prompt_tokens, result.output_tokens
        reasoned, total = result.reasoned, prompt_tokens + output_tokens
        if turn > conversation.turn:
            conversation.turn = turn
        if result.prefill:
            conversation.prefill = result.prefill
        conversation.decode, conversation.epoch = decode, result.epoch
        homes = conversation.homes
        if not homes or homes[0] is not decode:  # not "!=": all share the pod's own word
            conversation.homes = _moved(homes, decode)
        conversation.context_tokens = prompt_tokens if reasoned else total
        conversation.last_route = result.route
        conversation.prompt_bytes, conversation.prompt_tokens = result.prompt_bytes, prompt_tokens
        if output_tokens:
            conversation.recent_outputs = add_recent(conversation.recent_outputs, output_tokens)
        if chain is None or self._by_key.get(conversation.key) is not conversation:
            return
        whole, reply_head = chain.whole, result.reply_head
        for trace in self._by_prompt.get(whole, ()):
            if trace.conversation is conversation and trace.reply_head == reply_head:
                self._remove_trace(trace)
        if len(conversation.traces) >= MAX_TRACES:
            self._remove_trace(conversation.traces[0])
        joint, thought = chain.joint(), chain.thought
        self._last_order = order = self._last_order + 1
        self._add_trace(
            Trace(conversation, turn, whole, joint, prompt_tokens, total, reply_head, order, False, reasoned, thought)
        )

    def link(self, conversation: Conversation, root: bytes, response_id: str) -> None:
        """The answer that just ended a turn of this conversation has that id; call after `finish`."""
        if self._by_key.get(conversation.key) is conversation:
            link = Link(conversation, conversation.turn, conversation.context_tokens, conversation.decode)
            self._links.add(root, response_id, link)

    def _by_link(self, link: Link, fresh_key: bytes, now_s: float) -> Recognition:
        conversation, turn = link.conversation, link.turn + 1
        if link.turn == conversation.turn and conversation.pending == 0:
            self._touch(conversation, now_s)
            return Recognition(conversation, Kind.NEXT, turn, link.tokens)
        return self._branch(conversation, turn, link.tokens, fresh_key, now_s)

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
            own = [trace for trace in self._by_prompt.get(prompt_hash, ()) if trace.conversation is conversation]
            if own:
                return max(self._shared_tokens(trace, chain, length) for trace in own)
        return 0

    def _shared_tokens(self, trace: Trace, chain: Chain, length: int) -> int:
        """What a prompt that extends that turn's prompt shares with it: the reply too, if it is there as it was made.

        Reasoning that the turn's prompt still showed and this one leaves out ends it there, at an earlier prompt.
        """
        if trace.thought >= 0 and not chain.keeps_thoughts(trace.thought):
            earlier = self._by_prompt.get(chain.prefix(trace.thought))
            return min(earlier[-1].prompt_tokens, trace.prompt_tokens) if earlier else 0
        if _goes_on(trace, chain, length) and (not trace.reasoned or chain.keeps_thoughts(length)):
            return trace.total_tokens
        return trace.prompt_tokens

    def _by_chain(self, chain: Chain, fresh_key: bytes, now_s: float) -> Recognition | None:
        by_prompt = self._by_prompt
        for length, prompt_hash in chain.prefixes(self._lengths):
            traces = by_prompt.get(prompt_hash)
            if not traces:
                continue
            if length == chain.length:
                if not chain.has_replies or traces[-1].turn == 1:
                    return None
                return self._repeat(traces, fresh_key, now_s)
            return self._extend(chain, length, traces, fresh_key, now_s)
        return None

    def _repeat(self, traces: Sequence[Trace], fresh_key: bytes, now_s: float) -> Recognition:
        trace = traces[-1]
        conversation = trace.conversation
        if _is_free_end(trace) and all(each.conversation is conversation for each in traces):
            self._touch(conversation, now_s)
            return Recognition(conversation, Kind.REPEAT, trace.turn, trace.prompt_tokens)
        return self._branch(conversation, trace.turn, trace.prompt_tokens, fresh_key, now_s)

    def _extend(
        self, chain: Chain, length: int, traces: Sequence[Trace], fresh_key: bytes, now_s: float
    ) -> Recognition:
        fitting = [trace for trace in reversed(traces) if _goes_on(trace, chain, length)]
        for trace in fitting:
            conversation = trace.conversation
            if _is_free_end(trace):
                self._touch(conversation, now_s)
                return Recognition(conversation, Kind.NEXT, trace.turn + 1, self._shared_tokens(trace, chain, length))
        trace = fitting[0] if fitting else traces[-1]
        shared_tokens = self._shared_tokens(trace, chain, length)
        return self._branch(trace.conversation, trace.turn + 1, shared_tokens, fresh_key, now_s)

    def _branch(
        self, parent: Conversation, turn: int, shared_tokens: int, fresh_key: bytes, now_s: float
    ) -> Recognition:
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
        for trace in conversation.traces:
            self._remove_trace(trace)
        self._links.forget(conversation)

    def _add_trace(self, trace: Trace) -> None:
        conversation, prompt_hash = trace.conversation, trace.prompt_hash
        conversation.traces = (*conversation.traces, trace)
        alike = self._by_prompt[prompt_hash] = (*self._by_prompt.get(prompt_hash, ()), trace)
        if trace.joint is not None:
            block, offset = trace.joint
            offsets = self._lengths.setdefault(block, {})
            offsets[offset] = offsets.get(offset, 0) + 1
        if len(alike) > MAX_ALIKE:
            self._remove_trace(alike[0])

    def _remove_trace(self, trace: Trace) -> None:
        trace.conversation.traces = _without(trace.conversation.traces, trace)
        alike = _without(self._by_prompt[trace.prompt_hash], trace)
        if alike:
            self._by_prompt[trace.prompt_hash] = alike
        else:
            del self._by_prompt[trace.prompt_hash]
        if trace.joint is not None:
            block, offset = trace.joint
            offsets = self._lengths[block]
            offsets[offset] -= 1
            if not offsets[offset]:
                del offsets[offset]
            if not offsets:
                del self._lengths[block]


def key_of_id(root: bytes, explicit_id: str) -> bytes:
    """The key of the conversation that a client calls so."""
    return xxhash.xxh3_128_digest(root + b"id" + explicit_id.encode())


def _goes_on(trace: Trace, chain: Chain, length: int) -> bool:
    """True when a prompt shows the very reply of that turn, or one that was not seen, behind the turn's prompt."""
    return trace.reply_head is None or chain.reply_follows(length, trace.reply_head)


def _is_free_end(trace: Trace) -> bool:
    """True when a conversation can go on from that turn: it is its last one, and no other is on its way."""
    conversation = trace.conversation
    return conversation.traces[-1] is trace and conversation.pending == 0 and not trace.continued


def _moved(homes: tuple[str, ...], decode: str) -> tuple[str, ...]:
    """The homes of a conversation whose last turn was on that pod."""
    others = [url for url in homes if url != decode]
    return (decode, *others)[:MAX_HOMES] if others else _only(decode)


def _without(traces: tuple[Trace, ...], trace: Trace) -> tuple[Trace, ...]:
    """The others. A trace is equal to itself alone."""
    at = traces.index(trace)
    return traces[:at] + traces[at + 1 :]


@lru_cache(maxsize=1024)
def _only(url: str) -> tuple[str]:
    """That pod alone: one tuple for all conversations of which it holds everything."""
    return (url,)
