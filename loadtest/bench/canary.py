"""How often the canary's guard raises a false alarm, and how soon it sees a canary that is bad.

Conversations come at random, talk some turns, and have a speed of their own (so the turns of one are alike); the whole
cluster has slow minutes (so times of one moment are alike); a share of the requests fails. All of that is the same on
both sides, which the guard must not mistake for evidence. Virtual time, no sockets.
"""

from __future__ import annotations

import json
import math
import random
import time
from dataclasses import dataclass
from typing import Any

from gateway.core.guard import Guard, GuardSettings, Sample

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class World:
    """rate: conversations per second. slower: factor on the canary's times. failing: added to its share of failed
    requests."""

    rate: float
    percent: float
    slower: float = 1.0
    failing: float = 0.0


def samples(world: World, hours: float, seed: int) -> list[tuple[float, Sample]]:
    """What a guard is told, by time."""
    draw = random.Random(seed)
    found: list[tuple[float, Sample]] = []
    minutes = math.ceil(hours * 60)
    slow_minutes = [math.exp(draw.gauss(0, 0.4)) if draw.random() < 0.2 else 1.0 for _ in range(minutes)]
    for number in range(round(world.rate * hours * HOUR_S)):
        canary = draw.random() * 100 < world.percent
        name, own = str(number), math.exp(draw.gauss(0, 0.5))
        at, tokens, turn = draw.random() * hours * HOUR_S, int(draw.lognormvariate(6, 1)), 1
        while at < hours * HOUR_S:
            slow = slow_minutes[int(at / 60)] * (world.slower if canary else 1.0)
            times: tuple[float | None, float | None] = (
                0.1 * (tokens / 400) ** 0.5 * own * slow * math.exp(draw.gauss(0, 0.3)),
                0.01 * own**0.3 * slow * math.exp(draw.gauss(0, 0.1)),
            )
            failed = draw.random() < 0.002 + (world.failing if canary else 0.0)
            found.append((at, Sample(canary, name, turn, tokens, failed, *((None, None) if failed else times))))
            if draw.random() < 0.25:
                break
            at += draw.expovariate(0.05)
            tokens += int(draw.lognormvariate(5.5, 0.7))
            turn += 1
    found.sort(key=lambda each: each[0])
    return found


def first_alarm(world: World, settings: GuardSettings, hours: float, seed: int) -> float | None:
    """Seconds to the first alarm, None for none."""
    guard, next_look = Guard(settings), settings.look_s
    for at, sample in samples(world, hours, seed):
        while at >= next_look:
            if guard.look(next_look).verdict is not None:
                return next_look
            next_look += settings.look_s
        guard.add(sample, at)
    return None


def add_command(commands: Any) -> None:
    """`canary`."""
    parser = commands.add_parser("canary", help="false alarms of the canary's guard, and how soon it sees a bad one")
    parser.add_argument("--runs", type=int, default=200, metavar="N", help="runs of an hour for each kind of canary")
    parser.add_argument("--rate", type=float, default=2.0, metavar="R", help="conversations per second")
    parser.add_argument("--percent", type=float, default=20.0, metavar="P", help="share of the canary")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(options: Any) -> int:
    allowed_per_hour = 0.1
    settings = GuardSettings(look_s=30.0, false_alarms=24 * allowed_per_hour)
    usual = GuardSettings()
    edge = 1 + settings.latency_margin
    kinds = {
        "as good as the baseline": World(options.rate, options.percent),
        "slower by the margin exactly": World(options.rate, options.percent, slower=edge),
        "slower by half": World(options.rate, options.percent, slower=1.5),
        "twice as slow": World(options.rate, options.percent, slower=2.0),
        "fails 5 % more requests": World(options.rate, options.percent, failing=0.05),
        "fails half of its requests": World(options.rate, options.percent, failing=0.5),
    }
    rows: list[dict[str, Any]] = []
    for kind, world in kinds.items():
        good = world.slower <= edge and not world.failing
        runs = options.runs if good else max(1, options.runs // 10)
        rules = settings if good else usual
        alarms = [first_alarm(world, rules, 1.0, seed) for seed in range(runs)]
        times = sorted(at for at in alarms if at is not None)
        row = {"canary": kind, "runs": runs, "alarms": len(times), "allowed": allowed_per_hour if good else None}
        row["median_s"] = times[len(times) // 2] if times else None
        rows.append(row)
    looks = _look_cost(World(10 * options.rate, 50), usual)
    if options.json:
        print(json.dumps({"rows": rows, **looks}))
        return 0
    print(f"{options.rate:g} conversations/s, {options.percent:g} % canary, runs of an hour")
    print(f"{'canary':30} {'runs':>5} {'alarms':>7} {'share':>7} {'allowed':>8} {'median to alarm':>16}")
    for row in rows:
        allowed = "-" if row["allowed"] is None else f"{row['allowed']:.2f}"
        median = "-" if row["median_s"] is None else f"{row['median_s']:.0f} s"
        share = row["alarms"] / row["runs"]
        print(f"{row['canary']:30} {row['runs']:5} {row['alarms']:7} {share:7.3f} {allowed:>8} {median:>16}")
    print(
        f"one sample {looks['add_us']:.1f} us, one look {looks['look_ms']:.1f} ms in {looks['pieces']} pieces, "
        f"the longest {looks['piece_ms']:.1f} ms"
    )
    return 0


def _look_cost(world: World, settings: GuardSettings) -> dict[str, float]:
    """What a guard with full memories costs."""
    told = samples(world, 0.5, 1)
    guard = Guard(settings)
    began = time.process_time()
    for at, sample in told:
        guard.add(sample, at)
    add_us = (time.process_time() - began) / len(told) * 1e6
    pieces, last = [], time.process_time()
    for _ in guard.steps(told[-1][0]):
        now = time.process_time()
        pieces.append(now - last)
        last = now
    pieces.append(time.process_time() - last)
    return {
        "add_us": add_us,
        "look_ms": 1000 * sum(pieces),
        "piece_ms": 1000 * max(pieces),
        "pieces": len(pieces),
    }
