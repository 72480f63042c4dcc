"""Which conversations the policy routes, and which go as they would without it.

Rule of this room: a conversation's side follows from its key and the percentage alone, so that every worker and every
gateway that knows the conversation puts it on the same side, and a higher percentage only ever adds conversations.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import xxhash

_SPAN = float(1 << 64)


class CanaryState(enum.StrEnum):
    """ON: the percentage holds. OFF: somebody turned it off. STOPPED: the guard did; only a person turns it on."""

    ON = "on"
    OFF = "off"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class CanaryStatus:
    """What there is to keep over a restart and to tell other workers. since_s: Unix time of the last change."""

    state: CanaryState
    percent: float
    why: str
    since_s: float


class Canary:
    """The switch. shadow: decide for the canary's conversations, but carry out what the baseline would.

    stops: how often the guard stopped it in this process. shadowed: decisions in shadow by the route they would have
    taken.
    """

    def __init__(self, percent: float = 100.0, *, shadow: bool = False) -> None:
        self.shadow = shadow
        self.stops = 0
        self.shadowed: dict[str, int] = {}
        self._status = CanaryStatus(CanaryState.ON, checked_percent(percent), "as configured", 0.0)
        self._everything = False
        self._share = 0.0
        self._apply()

    @property
    def status(self) -> CanaryStatus:
        """State, percentage, why and since when."""
        return self._status

    @property
    def compares(self) -> bool:
        """True while both sides get traffic, so that one can be held against the other."""
        return not self.shadow and 0 < self._share < _SPAN

    @property
    def takes_all(self) -> bool:
        """True when the policy routes everything: the usual case, in which there is nothing to ask."""
        return self._everything

    def takes(self, key: bytes) -> bool:
        """True when the conversation of that key is the canary's."""
        return self._everything or slot_of(key) < self._share

    def restore(self, status: CanaryStatus) -> None:
        """Go on from what was kept, or from what another worker says."""
        checked_percent(status.percent)
        self._status = status
        self._apply()

    def set_percent(self, percent: float, why: str, now_s: float) -> None:
        """Another percentage, and on. Raises ValueError."""
        self._change(CanaryState.ON, checked_percent(percent), why, now_s)

    def configure(self, percent: float, now_s: float) -> None:
        """Another percentage, of which nobody said that it turns on what is off. Raises ValueError."""
        status = self._status
        if status.state is CanaryState.ON:
            self._change(CanaryState.ON, checked_percent(percent), "as configured", now_s)
        else:
            self._change(status.state, checked_percent(percent), status.why, status.since_s)

    def turn(self, state: CanaryState, why: str, now_s: float) -> None:
        """On with the percentage that it had, or off."""
        self._change(state, self._status.percent, why, now_s)

    def stop(self, why: str, now_s: float) -> None:
        """The guard's word: off until a person turns it on."""
        self.stops += 1
        self._change(CanaryState.STOPPED, self._status.percent, why, now_s)

    def note_shadow(self, route: str) -> None:
        """In shadow a request would have taken that route."""
        self.shadowed[route] = self.shadowed.get(route, 0) + 1

    def _change(self, state: CanaryState, percent: float, why: str, now_s: float) -> None:
        self._status = CanaryStatus(state, percent, why, now_s)
        self._apply()

    def _apply(self) -> None:
        percent = self._status.percent if self._status.state is CanaryState.ON else 0.0
        self._everything = percent >= 100 and not self.shadow
        self._share = _SPAN if percent >= 100 else percent / 100 * _SPAN


def slot_of(key: bytes) -> int:
    """Where a conversation lies among all, 0 … 2^64 - 1, evenly and independent of how its pods are chosen."""
    return xxhash.xxh3_64_intdigest(b"canary" + key)


def checked_percent(percent: float) -> float:
    """That percentage. Raises ValueError."""
    if not 0 <= percent <= 100:
        raise ValueError("a percentage is between 0 and 100")
    return percent
