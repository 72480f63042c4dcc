"""From what a discovery says to what the fleet should be.

Rule of this room: a pod that is seen is believed at once, a pod that is missing only after a while, and a loss of many
at once is more likely a mistake of whoever answers than of the pods. The time is an argument.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.core.pods import Role

LAPSES = 2
"""A pod that was lost so often within FLAP_HOLDS times hold_s has to be well for hold_s before it gets new traffic."""

FLAP_HOLDS = 10


class Standing(enum.Enum):
    """READY: it may get traffic. UNREADY: nothing new for now. LEAVING: it is on its way out, for certain."""

    READY = "ready"
    UNREADY = "unready"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True)
class Found:
    """A pod in a discovery's answer."""

    url: str
    role: Role
    standing: Standing = Standing.READY


@dataclass(frozen=True, slots=True)
class SettlingRules:
    """hold_s: how long a doubt must last to be believed. max_loss: share of a source's pods that may be missing or
    not ready without doubt. sure_of_absence: a pod that is not in an answer is gone, rather than only missing in it."""

    hold_s: float = 15.0
    max_loss: float = 0.5
    sure_of_absence: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the fleet should be, as far as one source is concerned.

    pods: to be there. drained: which of them get nothing new. doubt: a loss that is not believed yet, in words.
    again_at: when to look again though nothing new was said; infinite for never.
    """

    pods: dict[str, Role]
    drained: frozenset[str]
    doubt: str | None
    again_at: float


@dataclass
class Settling:
    """One source's answers. `answer` with each of them, then `wanted`, and again at `Wanted.again_at`."""

    rules: SettlingRules
    _last: dict[str, Found] = field(default_factory=dict)
    _pods: dict[str, Role] = field(default_factory=dict)
    _drained: set[str] = field(default_factory=set)
    _missing_since: dict[str, float] = field(default_factory=dict)
    _ready_since: dict[str, float] = field(default_factory=dict)
    _lapses: dict[str, deque[float]] = field(default_factory=dict)
    _doubt_since: float | None = None

    def answer(self, found: Iterable[Found], now_s: float) -> None:
        """Everything the source knows now. Of a pod named twice the first counts."""
        before, self._last = self._last, {}
        for each in found:
            self._last.setdefault(each.url, each)
        for url in before.keys() | self._last.keys():
            if not _ready(self._last.get(url)):
                if _ready(before.get(url)):
                    self._lapses.setdefault(url, deque(maxlen=LAPSES)).append(now_s)
                self._ready_since.pop(url, None)
            else:
                self._ready_since.setdefault(url, now_s)
        for url in self._pods.keys() - self._last.keys():
            self._missing_since.setdefault(url, now_s)
        for url in self._last:
            self._missing_since.pop(url, None)

    def wanted(self, now_s: float) -> Wanted:
        """What to make of it now."""
        self._forget_old(now_s)
        leaving = {url for url, each in self._last.items() if each.standing is Standing.LEAVING}
        lost = {url for url in self._pods if url not in leaving and not _ready(self._last.get(url))}
        remaining = self._pods.keys() - leaving
        news = lost - self._drained
        times = []
        doubt = None
        if news and len(lost) > self.rules.max_loss * len(remaining):
            self._doubt_since = now_s if self._doubt_since is None else self._doubt_since
            until = self._doubt_since + self.rules.hold_s
            if now_s < until:
                doubt = f"{len(lost)} of {len(remaining)} pods would be lost"
                times.append(until)
        else:
            self._doubt_since = None
        if doubt is None:
            times += self._take_away(lost, now_s)
            self._doubt_since = None
        for url in leaving:
            self._drop(url)
        times += self._bring(now_s)
        return Wanted(dict(self._pods), frozenset(self._drained), doubt, min(times, default=math.inf))

    def _take_away(self, lost: set[str], now_s: float) -> list[float]:
        """Drain what is not ready, drop what is not there; gives when more of that is due."""
        times = []
        for url in lost:
            if url in self._last:
                self._drained.add(url)
                continue
            hold_s = 0.0 if self.rules.sure_of_absence else self.rules.hold_s
            until = self._missing_since.get(url, now_s) + hold_s
            if now_s >= until:
                self._drop(url)
            else:
                times.append(until)
        return times

    def _bring(self, now_s: float) -> list[float]:
        """Take in what is ready; gives when those that flapped are due."""
        times = []
        for url, each in self._last.items():
            if each.standing is not Standing.READY:
                continue
            until = self._ready_since.get(url, now_s) + self.rules.hold_s
            flaps = len(self._lapses.get(url, ())) >= LAPSES and now_s < until
            if flaps:
                times.append(until)
            if flaps and (url in self._drained or url not in self._pods):
                continue
            self._pods[url] = each.role
            self._drained.discard(url)
        return times

    def _drop(self, url: str) -> None:
        self._pods.pop(url, None)
        self._drained.discard(url)
        self._missing_since.pop(url, None)

    def _forget_old(self, now_s: float) -> None:
        oldest = now_s - FLAP_HOLDS * self.rules.hold_s
        for url in [url for url, at in self._lapses.items() if at[-1] < oldest]:
            del self._lapses[url]
        for at in self._lapses.values():
            while at[0] < oldest:
                at.popleft()


def _ready(found: Found | None) -> bool:
    return found is not None and found.standing is Standing.READY
