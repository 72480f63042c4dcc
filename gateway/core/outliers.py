"""Pods that are far from their peers get less, and more again.

Rule of this room: compared with the median of the others, never with a number of our own; slowly down, slowly up; and
never more than half of the pods of a role, or there would be nobody to compare with.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from gateway.core.pods import Pod

WINDOW_S = 60.0
REVIEW_S = 5.0
MIN_SAMPLES = 20
MIN_PODS = 3
SLOW = 3.0
"""Times the median of the others."""

FAILING = 0.2
"""Above the median of the others, as a share of the requests."""

DOWN = 0.5
UP = 0.1
LEAST = 0.1
FIXED_TOKENS = 256
"""What the fixed cost of a first token is worth, so that short prompts do not look slow."""


@dataclass(slots=True)
class _Seen:
    times: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=200))
    ends: deque[tuple[float, bool]] = field(default_factory=lambda: deque(maxlen=200))

    def since(self, start_s: float) -> tuple[list[float], list[bool]]:
        return [v for at, v in self.times if at >= start_s], [v for at, v in self.ends if at >= start_s]


class Outliers:
    """Tell it what happened; `review` moves the weights."""

    def __init__(self) -> None:
        self._seen: defaultdict[str, _Seen] = defaultdict(_Seen)
        self._reviewed_at = 0.0

    def timed(self, pod: Pod, seconds: float, new_tokens: int, now_s: float) -> None:
        """A first token took so long, with so many tokens of its prompt to compute."""
        tokens = new_tokens + FIXED_TOKENS if new_tokens > 0 else FIXED_TOKENS
        self._seen[pod.url].times.append((now_s, seconds / tokens))

    def ended(self, pod: Pod, failed: bool, now_s: float) -> None:
        """A request ended there."""
        self._seen[pod.url].ends.append((now_s, failed))

    def review(self, pods: Iterable[Pod], now_s: float) -> list[tuple[Pod, str]]:
        """Move the weights of the pods of one role, all of them up. Gives those that lose traffic from now on, and why.

        `due` first.
        """
        pods = list(pods)
        far = {id(pod): why for pod, why in self._far(pods, now_s)}
        room = len(pods) // 2 - sum(pod.weight < 1 and id(pod) not in far for pod in pods)
        found = []
        for pod in sorted(pods, key=lambda pod: pod.weight):
            why = far.get(id(pod))
            if why is not None and room > 0:
                room -= 1
                if pod.weight == 1:
                    found.append((pod, why))
                pod.weight = max(LEAST, pod.weight * DOWN)
            else:
                pod.weight = min(1.0, round(pod.weight + UP, 3))
        return found

    def due(self, now_s: float) -> bool:
        """Whether it is time for the next review; if so, it counts as begun."""
        if now_s < self._reviewed_at + REVIEW_S:
            return False
        self._reviewed_at = now_s
        return True

    def forget(self, pod: Pod) -> None:
        """The pod's process is another one."""
        self._seen.pop(pod.url, None)
        pod.weight = 1.0

    def _far(self, pods: list[Pod], now_s: float) -> list[tuple[Pod, str]]:
        seen = {pod.url: self._seen[pod.url].since(now_s - WINDOW_S) for pod in pods}
        paces = {url: median(times) for url, (times, _) in seen.items() if len(times) >= MIN_SAMPLES}
        rates = {url: sum(ends) / len(ends) for url, (_, ends) in seen.items() if len(ends) >= MIN_SAMPLES}
        found = []
        for pod in pods:
            pace, usual = _against(pod.url, paces)
            rate, usual_rate = _against(pod.url, rates)
            if pace > SLOW * usual:
                found.append((pod, f"its first tokens take {pace / usual:.1f} times as long as its peers'"))
            elif rate > usual_rate + FAILING:
                found.append((pod, f"{rate:.0%} of its requests fail, {usual_rate:.0%} of its peers'"))
        return found


def _against(url: str, values: dict[str, float]) -> tuple[float, float]:
    """A pod's value and the median of the others'; equal where there is too little to compare."""
    if url not in values or len(values) < MIN_PODS:
        return 0.0, 0.0
    return values[url], median(value for other, value in values.items() if other != url)
