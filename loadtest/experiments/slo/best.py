"""The best fixed table that was found for the world after a change: what an oracle would decide by.

A table measured again with all turns on one route does not describe a cluster where some turns take either: it holds
the congestion that a route brings on itself. So it is one candidate of several, and others are learnt on the way: the
policy decides by a table, one turn in so many takes the other route, and what both routes took makes the next table.

Rule of this room: a candidate is whatever one fixed table can say, the old one and one route for all included; all are
judged in the same traffic, of seeds that belong to no evaluation.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import xxhash

from gateway.core.drift.monitor import Change as Alarm
from gateway.core.drift.tally import Tally
from gateway.core.policies import Choice, MeasuredTable, Route, Seen, TurnView
from gateway.core.weights import Weights
from gateway.ops.drift import point_of
from loadtest.experiments.outcomes import Fate, TurnRecord
from loadtest.experiments.run import Spec, play, run, set_up
from loadtest.experiments.slo.oracle import FOLDER, Regime, table_for
from loadtest.experiments.slo.shifts import COUNTED, Change
from lut.learn import learn
from lut.publish import Draft, DraftTable, write_table_set
from lut.raw import Located
from lut.table import TableSet

VERSION = 1
GIVEN_UP_S = 30.0
_MIN_SAMPLES = 15


class Stretch(NamedTuple):
    """Later turns of some minutes: mean seconds, failed turns with what the client gave them."""

    ttft_s: float
    tpot_s: float
    turns: int
    local: float


@dataclass(frozen=True, slots=True)
class Search:
    """How hard is looked. rounds: tables learnt one from the other. share: of turns that take the other route then.

    toll: what time to a first token through P is multiplied by in one more candidate, because a turn that goes there
    delays others, which no table of what turns took themselves can hold. policies: one route for all, as candidates.
    """

    rounds: int = 3
    share: float = 0.15
    toll: float = 2.0
    policies: tuple[str, ...] = ("local", "pd")
    seeds: int = 2
    learn_s: float = 420.0
    judge_s: float = 240.0
    warm_up_s: float = 60.0


class Fixed(NamedTuple):
    """What was judged. tables: in the folder of tables, None where the policy says the same everywhere. score: mean
    logarithm, weighted: less is better. The rest are means."""

    name: str
    policy: str
    tables: str | None
    score: float
    ttft_s: float
    tpot_s: float
    local: float

    def path(self, folder: Path = FOLDER) -> Path | None:
        return None if self.tables is None else folder / self.tables


def find(change: Change, search: Search, folder: Path = FOLDER, jobs: int | None = None) -> list[Fixed]:
    """All candidates, the best first; looked for once. Raises TableError."""
    before, after = (
        table_for(change.assignment, change.hardware, regime, folder=folder, plan=change.plan, jobs=jobs)
        for regime in (Regime(), change.after)
    )
    said = repr((VERSION, change, change.hardware.load(), search, before.name, after.name))
    name = re.sub(r"\W+", "-", change.name)
    kept = folder / f"best-{name}-{xxhash.xxh3_64_hexdigest(said.encode())}"
    file = kept / "best.json"
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[Fixed])
    except FileNotFoundError:
        kept.mkdir(exist_ok=True)
    candidates: list[tuple[str, str, Path | None]] = [("the old table", "ppd", before)]
    candidates += [(f"one route for all: {policy}", policy, None) for policy in search.policies]
    if after != before:
        candidates.append(("measured again, one route at a time", "ppd", after))
    tables = after
    for number in range(1, search.rounds + 1):
        tables = _learnt(change, tables, search, number, kept / f"learnt-{number}")
        candidates.append((f"learnt on the way, {number}", "ppd", tables))
    toll = _tolled(tables, search.toll, kept / "toll")
    candidates.append((f"that, through P {search.toll:g} times as long", "ppd", toll))
    found = [_judged(change, search, folder, *candidate) for candidate in candidates]
    found.sort(key=lambda each: each.score)
    file.write_bytes(msgspec.json.encode(found))
    return found


def stretch(turns: Sequence[TurnRecord], begin_s: float, end_s: float) -> Stretch:
    """Of the later turns that count."""
    found = [t for t in turns if begin_s <= t.at_s < end_s and t.turn > 1 and t.tenant in COUNTED]
    good = [turn for turn in found if turn.fate is Fate.GOOD]
    ttft = [turn.ttft_s if turn.fate is Fate.GOOD else GIVEN_UP_S for turn in found]
    tpot = [turn.tpot_s for turn in good if not math.isnan(turn.tpot_s)]
    local = sum(turn.route == "local" for turn in found) / max(1, len(found))
    return Stretch(math.fsum(ttft) / max(1, len(ttft)), math.fsum(tpot) / max(1, len(tpot)), len(found), local)


def score(found: Stretch, weights: Weights) -> float:
    """The logarithms of both means, weighted: which of two is less does not depend on what they are held against."""
    logs = weights.w_ttft * math.log(found.ttft_s) + weights.w_tpot * math.log(found.tpot_s)
    return logs / (weights.w_ttft + weights.w_tpot)


def _judged(change: Change, search: Search, folder: Path, name: str, policy: str, tables: Path | None) -> Fixed:
    runs = []
    for seed in range(search.seeds):
        spec = change.spec(f"oracle/judge/{seed}", search.judge_s, at_s=0.0, policy=policy, tables=tables)
        runs.append(stretch(run(spec).turns, search.warm_up_s, search.judge_s))
    means = [math.fsum(run[index] for run in runs) / len(runs) for index in (0, 1, 3)]
    scored = math.fsum(score(run, change.weights) for run in runs) / len(runs)
    return Fixed(name, policy, None if tables is None else str(tables.relative_to(folder)), scored, *means)


@dataclass
class BothWays(MeasuredTable):
    """Policy ppd of which a share of the turns takes the other route, by dice; what all took is counted."""

    share: float = 0.0
    dice: random.Random = field(default_factory=random.Random)
    tally: Tally = field(default_factory=Tally)

    def choose(self, view: TurnView) -> Choice:
        choice = super().choose(view)
        if self.dice.random() >= self.share:
            return choice
        return msgspec.structs.replace(choice, route=Route.PD if choice.route is Route.LOCAL else Route.LOCAL)

    def learn(self, seen: Seen, now_s: float) -> list[Alarm]:
        choice = seen.choice
        table, assignment, _ = self.tables.nearest_assignment(choice.assignment)
        place, ttft_s, tpot_s = table.place(*seen.point), seen.ttft_s, seen.tpot_s
        self.tally.count(assignment, place, choice.route, choice.rate, good=True, ttft_s=ttft_s, tpot_s=tpot_s)
        return []


def _learnt(change: Change, tables: Path, search: Search, number: int, directory: Path) -> Path:
    """Decide by a table, see what both routes take, write the table of that; cells that no turn met stay."""
    spec: Spec = change.spec(f"oracle/learn/{number}", search.learn_s, at_s=0.0, tables=tables)
    old = TableSet.open(tables)
    policy = BothWays(old, share=search.share, dice=random.Random(f"both ways/{number}"))
    play(set_up(spec, policy))
    points = []
    for (assignment, place, arm), cell in policy.tally.take().items():
        table = old.table(assignment)
        assert table is not None
        points.append(point_of(old, table, place, arm, cell, number, 0.0, search.learn_s))
    located = [Located(f"point {index}", point) for index, point in enumerate(points)]
    write_table_set(directory, learn(old, located, prior=0, min_samples=_MIN_SAMPLES).draft)
    return directory


def _tolled(tables: Path, toll: float, directory: Path) -> Path:
    old, made = TableSet.open(tables), {}
    for assignment, table in old.tables.items():
        data = np.array(table.data)
        for name in ("ttft_mean", "ttft_p99"):
            column = type(table)(assignment, table.axes, table.arms, data).column("pd", name)
            column *= toll
        made[assignment] = DraftTable(table.arms, data)
    known = old.manifest
    draft = Draft(
        model=known.model, block_size=known.block_size, simulated=known.simulated, axes=known.axes, tables=made
    )
    write_table_set(directory, draft)
    return directory
