"""How busy each pod is, and what that means for a request: from what the gateway has there and how long things took.

Rule of this room: two straight lines per pod, learned from what happened: seconds to a first token over the tokens that
had to be computed before it (its own and those ahead), and seconds per token over the requests that run beside it.
What the pods say of themselves corrects what the gateway knows of its own requests, because others may use them too.

A table speaks of an average pod at a rate. What is added here is how far *this* pod is from the average: tokens ahead,
pace, batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from gateway.core.pods import Pod, Role

KEPT = 0.98
"""What a line keeps of its past at each new point: it knows the last fifty or so."""

_PRIOR_POINTS = 4.0
_AVERAGE_NEWS = 0.02
_LEAST_SHARE = 0.2
_MOST_SHARE = 20.0
_FIRST_S, _PER_TOKEN_S = 0.02, 4e-5
_TPOT_S, _PER_REQUEST_S = 0.008, 1e-4
_HANDOVER_S, _MOVED_TOKEN_S = 0.01, 3e-6
_FULL_KV = 0.95
_OVERFLOW = 10.0
_STRANGERS_TOKENS = 512
"""What a request that waits and is not ours counts for."""


@dataclass(slots=True)
class Line:
    """y over x by least squares, with a past that fades. It begins as the line given, which counts for a few points.

    The slope is never negative: more work does not take less time.
    """

    at_zero: float
    slope: float
    points: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0

    def add(self, x: float, y: float) -> None:
        """y was seen at x."""
        most = 8 * max(self.at(x), 1e-4)
        y = min(y, most)
        self.points = self.points * KEPT + 1
        self._x = self._x * KEPT + x
        self._y = self._y * KEPT + y
        self._xx = self._xx * KEPT + x * x
        self._xy = self._xy * KEPT + x * y
        mean_x, mean_y = self._x / self.points, self._y / self.points
        spread = self._xx / self.points - mean_x * mean_x
        together = self._xy / self.points - mean_x * mean_y
        pull = _PRIOR_POINTS / (self.points + _PRIOR_POINTS)
        slope = together / spread if spread > 1e-9 * (1 + mean_x * mean_x) else self.slope
        slope = min(max(slope, 0.0), mean_y / mean_x if mean_x > 0 else slope)
        self.slope += (1 - pull) * (slope - self.slope)
        self.at_zero += (1 - pull) * (max(0.0, mean_y - self.slope * mean_x) - self.at_zero)

    def at(self, x: float) -> float:
        return self.at_zero + self.slope * x


@dataclass(slots=True)
class PodPace:
    """One pod's lines, and the averages of what was asked of it. first: seconds over tokens; each: over requests."""

    first: Line = field(default_factory=lambda: Line(_FIRST_S, _PER_TOKEN_S))
    each: Line = field(default_factory=lambda: Line(_TPOT_S, _PER_REQUEST_S))


class Load(msgspec.Struct, frozen=True):
    """What a turn would meet now, in seconds.

    pd_s, local_s: to the first token by either route, None where there is no such pod. average_pd_s,
    average_local_s: what it would meet at an average pod with the average queue. tpot_s: per token on the decode pod;
    average_tpot_s: on an average one with the average batch.
    """

    pd_s: float | None
    local_s: float
    average_pd_s: float
    average_local_s: float
    tpot_s: float
    average_tpot_s: float

    def ttft(self, table_s: float, *, local: bool) -> float:
        """The table's mean, corrected by how far these pods are from the average now."""
        now_s, average_s = (self.local_s, self.average_local_s) if local else (self.pd_s, self.average_pd_s)
        if now_s is None:
            return table_s
        return min(_MOST_SHARE * table_s, max(_LEAST_SHARE * table_s, table_s + now_s - average_s))

    def tpot(self, table_s: float) -> float:
        if self.average_tpot_s <= 0:
            return table_s
        return table_s * min(4.0, max(0.25, self.tpot_s / self.average_tpot_s))


class Loads:
    """All pods' paces. Give it to a `Fleet`; its decisions then look at load."""

    def __init__(self) -> None:
        self._paces: dict[str, PodPace] = {}
        self._moves = Line(_HANDOVER_S, _MOVED_TOKEN_S)
        self._usual = {role: PodPace() for role in Role}
        self._ahead: dict[Role, float] = dict.fromkeys(Role, 0.0)
        self._beside: dict[Role, float] = dict.fromkeys(Role, 0.0)

    def pace(self, pod: Pod) -> PodPace:
        """A pod's lines; a new pod is expected to be as its peers are."""
        found = self._paces.get(pod.url)
        if found is None:
            usual = self._usual[pod.role]
            first, each = Line(usual.first.at_zero, usual.first.slope), Line(usual.each.at_zero, usual.each.slope)
            found = self._paces[pod.url] = PodPace(first, each)
        return found

    def forget(self, url: str) -> None:
        """The pod has left, or its process is another one."""
        self._paces.pop(url, None)

    # ---- what happened

    def first_token(self, pod: Pod, tokens: float, seconds: float) -> None:
        """A first token came after so many tokens were computed: those ahead when it was sent, and its own."""
        if seconds > 0:
            self.pace(pod).first.add(tokens, seconds)
            self._usual[pod.role].first.add(tokens, seconds)

    def per_token(self, pod: Pod, running: float, seconds: float) -> None:
        """A stream had so much time between tokens, with so many requests at the pod."""
        if seconds > 0:
            self.pace(pod).each.add(running, seconds)
            self._usual[pod.role].each.add(running, seconds)

    def moved(self, tokens: int, seconds: float) -> None:
        """From P's answer to D's first token, for so many tokens."""
        if seconds > 0:
            self._moves.add(tokens, seconds)

    # ---- what it would be now

    def ahead(self, pod: Pod) -> float:
        """Tokens that the pod has to compute before those of a request that comes now."""
        if pod.facts.waiting == 0:
            return pod.pending_tokens
        return pod.pending_tokens + _strangers(pod) * _STRANGERS_TOKENS

    def beside(self, pod: Pod) -> float:
        """Requests that would run beside a new one."""
        return max(pod.in_flight, pod.facts.running)

    def first_s(self, pod: Pod, new_tokens: int) -> float:
        """Seconds to a first token at that pod, for a prompt with so many tokens to compute."""
        line = (self._paces.get(pod.url) or self.pace(pod)).first
        return line.at_zero + line.slope * (self.ahead(pod) + new_tokens)

    def each_s(self, pod: Pod) -> float:
        """Seconds per token there for one request more; more where its cache is about to overflow."""
        found = self.pace(pod).each.at(self.beside(pod) + 1)
        over = pod.facts.kv_usage - _FULL_KV
        return found * (1 + _OVERFLOW * over) if over > 0 else found

    def usual_s(self, role: Role, new_tokens: int, output_tokens: int) -> tuple[float, float]:
        """Seconds to the first token, and for all others, at a pod of that role with the load they had of late."""
        usual = self._usual[role]
        return usual.first.at(self._ahead[role] + new_tokens), output_tokens * usual.each.at(self._beside[role] + 1)

    def handover_s(self, tokens: int) -> float:
        """From P's answer to D's first token."""
        return self._moves.at(tokens)

    def of(self, prefill: Pod | None, decode: Pod, new_on_prefill: int, new_on_decode: int, moved_tokens: int) -> Load:
        """What a turn would meet at these pods, and on average. Also learns what is average."""
        usual = self._usual[decode.role]
        ahead, beside = self._average(decode)
        pd_s, average_pd_s = None, 0.0
        if prefill is not None:
            moving_s = self.handover_s(moved_tokens)
            pd_s = self.first_s(prefill, new_on_prefill) + moving_s
            at_prefill, _ = self._average(prefill)
            average_pd_s = self._usual[prefill.role].first.at(at_prefill + new_on_prefill) + moving_s
        return Load(
            pd_s,
            self.first_s(decode, new_on_decode),
            average_pd_s,
            usual.first.at(ahead + new_on_decode),
            self.each_s(decode),
            usual.each.at(beside + 1),
        )

    def _average(self, pod: Pod) -> tuple[float, float]:
        """Tokens ahead and requests beside, of late, at the pods of that role that turns were to go to."""
        role = pod.role
        self._ahead[role] += _AVERAGE_NEWS * (self.ahead(pod) - self._ahead[role])
        self._beside[role] += _AVERAGE_NEWS * (self.beside(pod) - self._beside[role])
        return self._ahead[role], self._beside[role]


def _strangers(pod: Pod) -> int:
    """Requests that wait at the pod and are not ours."""
    facts = pod.facts
    return max(0, min(facts.waiting, facts.running + facts.waiting - pod.in_flight))
