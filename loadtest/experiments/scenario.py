"""What happens while an experiment runs: hardware gets slow, pods die and come back, the traffic changes.

Rule of this room: an event is data with a time; `apply` is the only place that does something to pods. What changes the
traffic is read by whoever makes it (`traffic`), before the first conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from loadtest.engine.virtual import VirtualCluster
from loadtest.experiments.errors import ExperimentError


@dataclass(frozen=True, slots=True)
class Slow:
    """From at_s on, every step of that pod takes `factor` times as long; 1 is back to normal."""

    at_s: float
    pod: str
    factor: float


@dataclass(frozen=True, slots=True)
class Kill:
    """The pod's process is gone, and its cache with it."""

    at_s: float
    pod: str


@dataclass(frozen=True, slots=True)
class Restart:
    """A new process, with an empty cache."""

    at_s: float
    pod: str


@dataclass(frozen=True, slots=True)
class ChangeRate:
    """From at_s on, conversations begin at this rate (of the stream of that tenant; "" is all streams)."""

    at_s: float
    per_second: float
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class ChangeMix:
    """From at_s on, new conversations are of this synthetic workload (of the stream of that tenant)."""

    at_s: float
    workload: str
    tenant: str = ""


Event = Slow | Kill | Restart | ChangeRate | ChangeMix


def parse(text: str) -> Event:
    """`30 slow d0 2`, `30 kill d1`, `60 restart d1`, `90 rate 12 [TENANT]`, `90 mix paste [TENANT]`.

    Raises ExperimentError.
    """
    words = text.split()
    try:
        at_s = float(words[0])
        if not 0 <= at_s < 1e9:
            raise ValueError
        return _MAKERS[words[1], len(words) - 2](at_s, words[2:])
    except (IndexError, KeyError, ValueError):
        raise ExperimentError(
            f"event {text!r}: write it like '30 slow d0 2', '30 kill d1', '60 restart d1', '90 rate 12', '90 mix paste'"
        ) from None


def _factor(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise ValueError
    return value


def _rate(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e6:
        raise ValueError
    return value


_MAKERS: dict[tuple[str, int], Callable[[float, list[str]], Event]] = {
    ("slow", 2): lambda at_s, words: Slow(at_s, words[0], _factor(words[1])),
    ("kill", 1): lambda at_s, words: Kill(at_s, words[0]),
    ("restart", 1): lambda at_s, words: Restart(at_s, words[0]),
    ("rate", 1): lambda at_s, words: ChangeRate(at_s, _rate(words[0])),
    ("rate", 2): lambda at_s, words: ChangeRate(at_s, _rate(words[0]), words[1]),
    ("mix", 1): lambda at_s, words: ChangeMix(at_s, words[0]),
    ("mix", 2): lambda at_s, words: ChangeMix(at_s, words[0], words[1]),
}


def check(events: Collection[Event], pods: Collection[str]) -> None:
    """Raises ExperimentError for a pod that is not there."""
    for event in events:
        if isinstance(event, Slow | Kill | Restart) and event.pod not in pods:
            raise ExperimentError(f"event at {event.at_s:g} s: there is no pod {event.pod!r}, but {', '.join(pods)}")


def schedule(events: Collection[Event], cluster: VirtualCluster) -> None:
    """Have them happen to the pods in time."""
    for event in events:
        if isinstance(event, Slow | Kill | Restart):
            cluster.call_at(event.at_s, lambda event=event: apply(event, cluster))  # type: ignore[misc]


def apply(event: Slow | Kill | Restart, cluster: VirtualCluster) -> None:
    """Do it now."""
    match event:
        case Slow():
            cluster.set_slowdown(event.pod, event.factor)
        case Kill():
            cluster.kill(event.pod)
        case Restart():
            cluster.restart(event.pod)
