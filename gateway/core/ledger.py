"""What a pod without KV events may still hold, from what the gateway itself sent there.

Rule of this room: an estimate that learns. A conversation's context is expected on the pod until as many tokens were
used there since as its cache has room for; every `cached_tokens` that says otherwise moves the room.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import takewhile

_LEARN = 0.5
"""How far one contradiction moves the room."""


class GhostCache:
    """A least-recently-used list of the conversations that used one pod's prefix cache, in tokens.

    capacity_tokens: size of the pod's KV cache (`cache_config_info`), None while it is unknown.
    room_tokens: what conversations are seen to share of it; other traffic and running requests take the rest.
    """

    def __init__(self, capacity_tokens: int | None = None) -> None:
        self._tokens: OrderedDict[bytes, int] = OrderedDict()
        self._total = 0
        self.capacity_tokens = capacity_tokens
        self.room_tokens: float | None = capacity_tokens

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def total_tokens(self) -> int:
        """Tokens expected on the pod."""
        return self._total

    def resize(self, capacity_tokens: int) -> None:
        """The pod said how large its cache is."""
        if capacity_tokens != self.capacity_tokens:
            self.capacity_tokens = self.room_tokens = capacity_tokens
            self._evict()

    def clear(self) -> None:
        """Nothing is there any more; what was learned of the room stays."""
        self._tokens.clear()
        self._total = 0

    def expected(self, session: bytes) -> int:
        """Tokens of this conversation expected in the cache."""
        return self._tokens.get(session, 0)

    def used(self, session: bytes, tokens: int) -> None:
        """A request left so many tokens of this conversation in the cache: it is the most recent now."""
        sessions, room = self._tokens, self.room_tokens
        self._total = total = self._total + tokens - sessions.pop(session, 0)
        sessions[session] = tokens
        if room is not None and total > room:
            self._evict()

    def saw(self, session: bytes, expected: int, cached: int, block_size: int) -> None:
        """The pod said how much it really had. Call before `used`."""
        if abs(expected - cached) <= block_size:
            return
        since = self._used_since(session)
        held = float(since + cached)
        if cached < expected:
            if self.room_tokens is None or held < self.room_tokens:
                self._move_room(held)
        elif self.room_tokens is not None and held > self.room_tokens:
            self._move_room(held)
        if session in self._tokens:
            self._total += cached - self._tokens[session]
            self._tokens[session] = cached

    def forget(self, session: bytes) -> None:
        """The conversation is over."""
        self._total -= self._tokens.pop(session, 0)

    def _used_since(self, session: bytes) -> int:
        if session not in self._tokens:
            return self._total
        newer = takewhile(lambda item: item[0] != session, reversed(self._tokens.items()))
        return sum(tokens for _, tokens in newer)

    def _move_room(self, seen: float) -> None:
        room = seen if self.room_tokens is None else self.room_tokens + _LEARN * (seen - self.room_tokens)
        self.room_tokens = room if self.capacity_tokens is None else min(room, float(self.capacity_tokens))
        self._evict()

    def _evict(self) -> None:
        """Take from the oldest conversation, end first, as vLLM's free queue does."""
        if self.room_tokens is None:
            return
        while self._total > self.room_tokens and self._tokens:
            session, tokens = next(iter(self._tokens.items()))
            over = self._total - int(self.room_tokens)
            if tokens > over:
                self._tokens[session] = tokens - over
                self._total -= over
                return
            self._total -= tokens
            del self._tokens[session]
