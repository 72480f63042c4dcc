"""Streams of conversations, each with its own workload, rate and tenant.

Rule of this room: which conversation begins when follows from the seed and the scenario, never from what the pods or
the policy do: two policies with the same seed meet the same conversations at the same times (common random numbers).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from loadtest.experiments import arrivals
from loadtest.experiments.arrivals import Rate
from loadtest.experiments.errors import ExperimentError
from loadtest.experiments.scenario import ChangeMix, ChangeRate, Event
from loadtest.experiments.workloads import Script, Workload, synthetic

BYTES_PER_TOKEN = 4.3
"""Of a prompt's text, on average. Each conversation's own differs, so the gateway's estimate of a prompt is one."""
_BYTES_SPREAD = 0.12


@dataclass(frozen=True, slots=True)
class Stream:
    """Conversations of one kind. rate: that begin per second; None: when they did in the trace (`Script.at_s`).

    think_s: mean of exponential thinking before each later turn, None to leave it as the workload has it.
    """

    workload: Workload
    rate: float | None
    tenant: str = ""
    think_s: float | None = None
    arrivals: str = "poisson"


class Arrival(NamedTuple):
    """One conversation. number: in order of time. bytes_per_token: of its text."""

    at_s: float
    number: int
    script: Script
    tenant: str
    bytes_per_token: float


@dataclass(frozen=True, slots=True)
class Extent:
    """How much traffic: conversations that begin before `until_s`, and `conversations` of each stream at most."""

    until_s: float | None = None
    conversations: int | None = None

    def __post_init__(self) -> None:
        if self.until_s is None and self.conversations is None:
            raise ExperimentError("say how long (--duration) or how many conversations (--conversations)")


def traffic(streams: Sequence[Stream], events: Sequence[Event], extent: Extent, seed: str) -> Iterator[Arrival]:
    """All conversations in order of time."""
    sources = [_stream(stream, events, extent, f"{seed}/{index}") for index, stream in enumerate(streams)]
    for number, (at_s, _, script, tenant, size) in enumerate(heapq.merge(*sources, key=lambda each: each[0])):
        yield Arrival(at_s, number, script, tenant, size)


def _stream(
    stream: Stream, events: Sequence[Event], extent: Extent, seed: str
) -> Iterator[tuple[float, int, Script, str, float]]:
    dice = random.Random(f"talks/{seed}")
    sizes = random.Random(f"bytes/{seed}")
    mixes = [event for event in _ours(events, stream, ChangeMix) if isinstance(event, ChangeMix)]
    scripts = stream.workload.scripts(random.Random(f"scripts/{seed}"))
    times = _times(stream, events, seed)
    index = 0
    while extent.conversations is None or index < extent.conversations:
        script = next(scripts, None)
        at_s = script.at_s if times is None and script is not None else next(times, None) if times else None
        if script is None or at_s is None or (extent.until_s is not None and at_s >= extent.until_s):
            return
        while mixes and mixes[0].at_s <= at_s:
            scripts = synthetic(mixes.pop(0).workload).scripts(random.Random(f"mix/{len(mixes)}/{seed}"))
            script = next(scripts)
        if stream.think_s is not None:
            script = _thinking(script, stream.think_s, dice)
        size = BYTES_PER_TOKEN * sizes.lognormvariate(0.0, _BYTES_SPREAD)
        yield at_s, index, script, stream.tenant or script.tenant, size
        index += 1


def _times(stream: Stream, events: Sequence[Event], seed: str) -> Iterator[float] | None:
    """None: as the trace says."""
    if stream.rate is None:
        return None
    rates = [Rate(0.0, stream.rate)]
    rates += [
        Rate(event.at_s, event.per_second)
        for event in _ours(events, stream, ChangeRate)
        if isinstance(event, ChangeRate)
    ]
    if stream.arrivals == "even":
        return arrivals.even(rates)
    return arrivals.poisson(rates, random.Random(f"arrivals/{seed}"))


def _ours(events: Sequence[Event], stream: Stream, kind: type[Event]) -> list[Event]:
    ours = [
        event for event in events if isinstance(event, kind) and getattr(event, "tenant", "") in ("", stream.tenant)
    ]
    return sorted(ours, key=lambda event: event.at_s)


def _thinking(script: Script, mean_s: float, dice: random.Random) -> Script:
    turns = tuple(
        turn._replace(think_s=dice.expovariate(1.0 / mean_s) if number and mean_s > 0 else 0.0)
        for number, turn in enumerate(script.turns)
    )
    return script._replace(turns=turns)
