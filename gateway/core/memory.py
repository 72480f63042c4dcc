"""Conversations as records that outlive the process: made from the store, put back into one.

Rule of this room: hashes, counts and pod URLs, never text. What lies in a pod's cache is tied to that pod's process
(`instance`); a record from before a restart of the pod brings the conversation back, but nothing resident.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.core.conversations import ConversationStore
from gateway.core.links import Link
from gateway.core.pods import Fleet, Pod
from gateway.core.residency import Residency
from gateway.core.turns import Conversation, Trace

LOST_EPOCH = -1
"""Epoch of a conversation whose decode pod is another process than the one that served it."""


class Home(msgspec.Struct, frozen=True, array_like=True):
    """A pod that served a conversation.

    instance: its process then (`PodFacts.instance`); empty when that is unknown or over. tokens: expected there.
    """

    url: str
    instance: str
    tokens: int


class TraceRecord(msgspec.Struct, frozen=True, array_like=True):
    """A `Trace`."""

    turn: int
    prompt_hash: bytes
    joint: tuple[bytes, int] | None
    prompt_tokens: int
    total_tokens: int
    reply_head: bytes | None
    order: int = 0
    reasoned: bool = False
    continued: bool = False
    thought: int = -1


class LinkRecord(msgspec.Struct, frozen=True, array_like=True):
    """A `Link`, and the key that stands for the answer's id."""

    key: bytes
    turn: int
    tokens: int
    pod: str | None = None


class ConversationRecord(msgspec.Struct, frozen=True, array_like=True):
    """A `Conversation`. age_s: since its last request. homes: its decode (or replica) pods, the last one first."""

    key: bytes
    age_s: float
    turn: int
    prefill: Home | None
    homes: tuple[Home, ...]
    context_tokens: int
    last_route: str | None
    recent_outputs: tuple[int, ...]
    prompt_bytes: int
    prompt_tokens: int
    traces: tuple[TraceRecord, ...] = ()
    links: tuple[LinkRecord, ...] = ()


def instance_of(pod: Pod | None) -> str:
    """The word that changes with a pod's process; empty when it tells none."""
    return "" if pod is None else pod.facts.instance


class Memory:
    """Writes the conversations of a store down, and takes records in."""

    def __init__(self, store: ConversationStore, fleet: Fleet, residency: Residency) -> None:
        self.store = store
        self._fleet = fleet
        self._residency = residency

    def record(
        self,
        conversation: Conversation,
        now_s: float,
        traces: Sequence[TraceRecord] | None = None,
        links: Sequence[LinkRecord] | None = None,
        *,
        just_served: bool = False,
    ) -> ConversationRecord:
        """A conversation as it is now, with those traces and links, else with all.

        just_served: its turn has this moment ended, so its pod holds all of it, whatever the pod's events still say.
        """
        key = conversation.key
        homes = [self._home(url, key) for url in conversation.homes]
        last = self._fleet.get(conversation.decode)
        if homes and (last is None or last.epoch != conversation.epoch):
            homes[0] = Home(homes[0].url, "", 0)
        elif homes and just_served:
            homes[0] = Home(homes[0].url, homes[0].instance, conversation.context_tokens)
        return ConversationRecord(
            key,
            max(0.0, now_s - conversation.last_seen_s),
            conversation.turn,
            None if conversation.prefill is None else self._home(conversation.prefill, key),
            tuple(homes),
            conversation.context_tokens,
            conversation.last_route,
            conversation.recent_outputs,
            conversation.prompt_bytes,
            conversation.prompt_tokens,
            tuple(map(trace_record, conversation.traces) if traces is None else traces),
            tuple(self.links_of(conversation) if links is None else links),
        )

    def revive(self, record: ConversationRecord, now_s: float, key: bytes | None = None) -> Conversation:
        """A conversation out of a record, without its traces and not in the store; its pods' caches are told of it."""
        key = record.key if key is None else key
        epoch = LOST_EPOCH
        for home in (record.prefill, *reversed(record.homes)):
            pod = None if home is None else self._same_process(home)
            if home is None or pod is None:
                continue
            if home.tokens:
                self._residency.used(pod, key, home.tokens)
            if record.homes and home is record.homes[0]:
                epoch = pod.epoch
        return Conversation(
            key=key,
            last_seen_s=now_s - record.age_s,
            turn=record.turn,
            prefill=record.prefill.url if record.prefill is not None else None,
            decode=record.homes[0].url if record.homes else None,
            homes=tuple(home.url for home in record.homes),
            epoch=epoch,
            context_tokens=record.context_tokens,
            last_route=record.last_route,
            recent_outputs=record.recent_outputs,
            prompt_bytes=record.prompt_bytes,
            prompt_tokens=record.prompt_tokens,
        )

    def put_back(self, record: ConversationRecord, now_s: float) -> None:
        """Take a conversation in as it was, into a store that does not have it."""
        conversation = self.revive(record, now_s)
        self.store.put(conversation)
        for trace in record.traces:
            self.store.add_trace(trace_of(trace, conversation))
        self.put_links(record, conversation)

    def links_of(self, conversation: Conversation) -> list[LinkRecord]:
        """By which ids its answers can be gone on from, the oldest first."""
        found = [(key, self.store.links.get(key)) for key in conversation.responses]
        return [LinkRecord(key, link.turn, link.tokens, link.pod) for key, link in found if link is not None]

    def put_links(self, record: ConversationRecord, conversation: Conversation) -> None:
        """Take the links of a record in."""
        for link in record.links:
            self.store.links.put(link.key, Link(conversation, link.turn, link.tokens, link.pod))

    def _home(self, url: str, key: bytes) -> Home:
        pod = self._fleet.get(url)
        instance = instance_of(pod)
        tokens = self._residency.of(pod, key).tokens if pod is not None and instance else 0
        return Home(url, instance, tokens)

    def _same_process(self, home: Home) -> Pod | None:
        pod = self._fleet.get(home.url)
        return pod if home.instance and instance_of(pod) == home.instance else None


def trace_record(trace: Trace) -> TraceRecord:
    """A trace without its conversation."""
    return TraceRecord(
        trace.turn,
        trace.prompt_hash,
        trace.joint,
        trace.prompt_tokens,
        trace.total_tokens,
        trace.reply_head,
        trace.order,
        trace.reasoned,
        trace.continued,
        trace.thought,
    )


def trace_of(record: TraceRecord, conversation: Conversation) -> Trace:
    """A trace for a conversation."""
    return Trace(
        conversation,
        record.turn,
        record.prompt_hash,
        record.joint,
        record.prompt_tokens,
        record.total_tokens,
        record.reply_head,
        order=record.order,
        continued=record.continued,
        reasoned=record.reasoned,
        thought=record.thought,
    )
