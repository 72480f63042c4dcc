"""Conversations for the tests of the store: a store with its clock, and three turns of a chat."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict, Unpack

from gateway.core.chains import Chain
from gateway.core.conversations import ConversationStore, Recognition
from tests.core.support import ROOT, chat, key, result


class Left(TypedDict, total=False):
    """What else a turn may leave behind."""

    prompt: int
    output: int
    prefill: str | None
    decode: str
    epoch: int
    route: str
    prompt_bytes: int


@dataclass
class Desk:
    """A store with its own running numbers for keys, and a clock that stands still until it is told."""

    store: ConversationStore = field(default_factory=lambda: ConversationStore(1000, 3600.0))
    now_s: float = 0.0
    keys: int = 0

    def ask(self, chain: Chain | None, name: str | None = None, root: bytes = ROOT) -> Recognition:
        """A request comes in and goes out."""
        self.keys += 1
        recognition = self.store.recognise(root, name, chain, key(self.keys), self.now_s)
        self.store.begin(recognition.conversation)
        return recognition

    def answer(
        self, recognition: Recognition, chain: Chain | None, reply: str | None = "hello", **more: Unpack[Left]
    ) -> None:
        self.store.finish(recognition, chain, result(reply, **more))

    def turn(
        self, chain: Chain | None, reply: str | None = "hello", name: str | None = None, **more: Unpack[Left]
    ) -> Recognition:
        """A request and its answer."""
        recognition = self.ask(chain, name)
        self.answer(recognition, chain, reply, **more)
        return recognition

    def assert_nothing_is_left(self) -> None:
        """Once everything is too old, every index is empty."""
        self.now_s += self.store.ttl_s + 1
        self.store.fail(self.ask(None).conversation)
        assert len(self.store) == 0
        assert (self.store._by_key, self.store._by_prompt, self.store._lengths) == ({}, {}, {})


HI = chat("u:hi")
HI_2 = chat("u:hi", "a:hello", "u:more")
HI_3 = chat("u:hi", "a:hello", "u:more", "a:there", "u:again")
