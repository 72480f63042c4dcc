"""Responses by their id, for clients that send no history but the id of the answer they go on from.

Rule of this room: an id is only found under the root it was given to, so no tenant can address another's; a link
is forgotten with its conversation.
"""

from __future__ import annotations

import msgspec
import xxhash

from gateway.core.turns import Conversation

MAX_LINKS = 64
"""Answers of one conversation that can still be gone on from by their id."""


class Link(msgspec.Struct, frozen=True):
    """The turn that an answer ended. tokens: that a prompt which goes on from it shares. pod: URL of the one that has
    the answer in memory."""

    conversation: Conversation
    turn: int
    tokens: int
    pod: str | None = None


class Links:
    """Response id → turn. Lives in a `ConversationStore`, which says when a conversation is gone."""

    def __init__(self) -> None:
        self._links: dict[bytes, Link] = {}

    def __len__(self) -> int:
        return len(self._links)

    def add(self, root: bytes, response_id: str, link: Link) -> None:
        """That id was given to the answer of that turn; the oldest of a conversation makes way."""
        self.put(link_key(root, response_id), link)

    def put(self, key: bytes, link: Link) -> None:
        """The same, by the key that stands for root and id."""
        conversation = link.conversation
        known = self._links.get(key)
        if known is not None:
            _leave(known.conversation, key)
        self._links[key] = link
        if len(conversation.responses) >= MAX_LINKS:
            self._links.pop(conversation.responses[0])
            conversation.responses = conversation.responses[1:]
        conversation.responses = (*conversation.responses, key)

    def find(self, root: bytes, response_id: str) -> Link | None:
        """The turn whose answer has that id."""
        return self._links.get(link_key(root, response_id))

    def get(self, key: bytes) -> Link | None:
        """The same, by the key that stands for root and id."""
        return self._links.get(key)

    def forget(self, conversation: Conversation) -> None:
        """The conversation is gone."""
        for key in conversation.responses:
            del self._links[key]
        conversation.responses = ()


def link_key(root: bytes, response_id: str) -> bytes:
    """What stands for the id of an answer under its root."""
    return xxhash.xxh3_128_digest(root + b"response" + response_id.encode(errors="replace"))


def _leave(conversation: Conversation, key: bytes) -> None:
    conversation.responses = tuple(each for each in conversation.responses if each != key)
