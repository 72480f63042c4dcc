"""The run in numbers, for people and for machines.

Rule of this room: the verdict is a list of sentences; a run passes when it is empty.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loadtest.live.figures import percentile
from loadtest.soak.ledger import Ledger
from loadtest.soak.slope import BIN_S, slope
from loadtest.soak.watch import Held, Spent

LATE_P99_S = 0.05
"""Beyond it the load was not what was asked for: the client or the machine was the bottleneck."""
SHOWN = 20


@dataclass(frozen=True, slots=True)
class Run:
    """What was measured. seconds: while conversations began. connections: that the client opened. table, blocks:
    samples of conversations remembered and of blocks of memory that Python objects take."""

    seconds: float
    rate: float
    late_s: Sequence[float]
    most_at_once: int
    connections: int
    rss: Sequence[tuple[float, int]]
    table: Sequence[tuple[float, int]]
    blocks: Sequence[tuple[float, int]]
    before: Held
    after: Held
    spent: tuple[Spent, Spent]
    bugs: Sequence[str]
    routes: dict[str, int]


def report(ledger: Ledger, run: Run, bound_kib_per_minute: float) -> dict[str, Any]:
    """All of it; `wrong` says what is wrong, in sentences."""
    memory = _memory(run, bound_kib_per_minute)
    unexplained, notices = ledger.unexplained(), ledger.unexplained_notices()
    beyond = run.after.beyond(run.before)
    wrong = [f"{len(unexplained)} requests failed without a fault that explains it"] if unexplained else []
    if notices:
        wrong.append(f"the gateway noticed {len(notices)} faults that were none of ours")
    if beyond:
        wrong.append(f"still held: {', '.join(f'{value} {name}' for name, value in beyond.items())}")
    if run.bugs:
        wrong.append(f"the gateway's log tells of a bug: {run.bugs[0]}")
    if memory["slope_kib_per_minute"] > bound_kib_per_minute:
        wrong.append(f"memory grew by {memory['slope_kib_per_minute']} KiB a minute")
    requests = sum(ledger.outcomes.values())
    return {
        "passed": not wrong,
        "wrong": wrong,
        "seconds": round(run.seconds, 1),
        "conversations": ledger.conversations,
        "starts": _starts(ledger, run),
        "requests": requests,
        "requests_per_s": round(requests / run.seconds, 1),
        "routes": run.routes,
        "outcomes": dict(ledger.outcomes.most_common()),
        "faults": _faults(ledger),
        "unexplained": [asdict(each) for each in unexplained[:SHOWN]],
        "unexplained_notices": [asdict(each) for each in notices[:SHOWN]],
        "memory": memory,
        "conversations_remembered": {
            "most": max((count for _, count in run.table), default=0),
            "course": [count for _, count in run.table[:: max(1, len(run.table) // 12)]],
        },
        "troubles": [asdict(each) for each in ledger.troubles],
        "held_before": asdict(run.before),
        "held_after": asdict(run.after),
        "cpu": _cpu(run),
    }


def _starts(ledger: Ledger, run: Run) -> dict[str, Any]:
    lates = sorted(run.late_s)
    p50, p99 = percentile(lates, 0.5), percentile(lates, 0.99)
    return {
        "asked_per_s": run.rate,
        "begun_per_s": round(len(lates) / run.seconds, 1),
        "held_back": ledger.held_back,
        "late_p50_ms": None if p50 is None else round(p50 * 1e3, 1),
        "late_p99_ms": None if p99 is None else round(p99 * 1e3, 1),
        "late_max_ms": round(lates[-1] * 1e3, 1) if lates else None,
        "most_at_once": run.most_at_once,
        "connections": run.connections,
        "machine_was_the_bottleneck": bool(ledger.held_back) or (p99 is not None and p99 > LATE_P99_S),
    }


def _memory(run: Run, bound: float) -> dict[str, Any]:
    half = [sample for sample in run.rss if sample[0] >= run.seconds / 2]
    line = slope(half, min(BIN_S, run.seconds / 20))
    mib = [kib / 1024 for _, kib in run.rss]
    blocks = slope([sample for sample in run.blocks if sample[0] >= run.seconds / 2])
    return {
        "slope_kib_per_minute": round(line.value * 60, 1),
        "standard_error": None if line.error is None else round(line.error * 60, 1),
        "points": line.points,
        "bound_kib_per_minute": bound,
        "course_mib": [round(each, 1) for each in mib[:: max(1, len(mib) // 12)]],
        "most_mib": round(max(mib), 1) if mib else None,
        "blocks": run.blocks[-1][1] if run.blocks else None,
        "blocks_slope_per_minute": round(blocks.value * 60),
        "blocks_standard_error": None if blocks.error is None else round(blocks.error * 60),
    }


def _faults(ledger: Ledger) -> dict[str, dict[str, Any]]:
    """By kind: how often, requests that met it where that is counted, lines of the gateway, failures of clients."""
    rows: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for trouble in ledger.troubles:
        rows[trouble.kind]["times"] += 1
        rows[trouble.kind]["struck"] += trouble.struck or 0
    for noticed in ledger.noticed:
        if (cause := ledger.cause_of_noticed(noticed)) is not None:
            rows[cause.kind]["noticed"] += 1
    for ended in ledger.failures:
        if (cause := ledger.cause_of(ended)) is not None:
            rows[cause.kind][ended.how] += 1
    return {kind: dict(rows[kind]) for kind in sorted(rows)}


def _cpu(run: Run) -> dict[str, Any]:
    """Shares of one core over the run, and what of their time client and gateway waited for one."""
    first, last = run.spent
    clock = last.clock - first.clock
    used = {name: getattr(last, name) - getattr(first, name) for name in ("gateway", "pods", "client", "machine")}
    shares = {name: round(seconds / clock, 3) for name, seconds in used.items()}
    others = used["machine"] - used["gateway"] - used["pods"] - used["client"]
    waited = {}
    for name in ("client", "gateway"):
        begin, end = getattr(first, f"{name}_waited"), getattr(last, f"{name}_waited")
        waited[f"{name}_waited"] = None if begin is None or end is None else round((end - begin) / clock, 3)
    return {**shares, "others": round(others / clock, 3), **waited}


def lines(found: dict[str, Any]) -> list[str]:
    """The report as text."""
    said = [f"{name:26} {_shown(value)}" for name, value in found.items() if name not in ("faults", "troubles")]
    columns = ["times", "struck", "noticed", *sorted({key for row in found["faults"].values() for key in row} - _OURS)]
    said += ["", f"{'fault':20}" + "".join(f"{column:>9}" for column in columns)]
    for kind, row in found["faults"].items():
        said.append(f"{kind:20}" + "".join(f"{row.get(column, 0):>9}" for column in columns))
    return said


_OURS = {"times", "struck", "noticed"}


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {inner}" for name, inner in value.items())
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "; ".join(_shown(inner) for inner in value)
    return str(value)
