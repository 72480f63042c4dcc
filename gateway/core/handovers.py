"""Whose KV waits on which prefill pod.

Rule of this room: an entry from P's answer until D took the blocks, P was told to free them, or P's lease ended. What
a request still makes something of does not end by itself, for D renews the lease of what is in its scheduler.
"""

from __future__ import annotations

from collections import Counter

import msgspec


class Waiting(msgspec.Struct, eq=False):
    """One hand-over. prefill: the pod's URL. in_use: a request still makes something of it."""

    prefill: str
    since_s: float
    in_use: bool = True


class Handovers:
    """All of one gateway. stranded: per prefill pod, how many nobody took before the lease ended."""

    def __init__(self, lease_s: float = 30.0) -> None:
        self._lease_s = lease_s
        self._waiting: dict[Waiting, None] = {}
        self.stranded: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, prefill: str, now_s: float) -> Waiting:
        """P answered and keeps the blocks."""
        made = Waiting(prefill, now_s)
        self._waiting[made] = None
        return made

    def over(self, waiting: Waiting) -> None:
        """D took the blocks, or P was told that nobody will."""
        self._waiting.pop(waiting, None)

    def leave(self, waiting: Waiting) -> None:
        """No request makes anything of it any more, and P does not know."""
        waiting.in_use = False

    def forget(self, prefill: str) -> None:
        """P's process is gone, and the blocks with it."""
        for waiting in [each for each in self._waiting if each.prefill == prefill]:
            del self._waiting[waiting]

    def drop(self, prefill: str) -> None:
        """P was removed."""
        self.forget(prefill)
        self.stranded.pop(prefill, None)

    def expire(self, now_s: float) -> None:
        """Count and drop what nobody took before its lease ended."""
        over = [each for each in self._waiting if not each.in_use and each.since_s <= now_s - self._lease_s]
        for waiting in over:
            del self._waiting[waiting]
            self.stranded[waiting.prefill] += 1

    def of(self, prefill: str, now_s: float) -> tuple[int, float]:
        """How many wait on a pod, and for how long the oldest of them has."""
        since = [each.since_s for each in self._waiting if each.prefill == prefill]
        return len(since), now_s - min(since) if since else 0.0

    @property
    def in_use(self) -> int:
        """How many a request still makes something of."""
        return sum(each.in_use for each in self._waiting)
