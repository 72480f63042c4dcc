"""One experiment as one line of JSON.

Rule of this room: a row says what was run and what came out, in numbers; a report is made of rows alone, so results
can be read again without running anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from loadtest.experiments.errors import ExperimentError
from loadtest.experiments.outcomes import Fate, Summary, TurnRecord, first_turns, later_turns, summarise
from loadtest.experiments.run import Result


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """rate: conversations that begin per second, null for a trace. span_s: from the first turn to the end of the last.

    within_30_s: share of turns that ended well so soon. tokens_per_s: of answers that came whole. moved_bytes: of KV
    between pods, moves: how often.
    """

    assignment: str
    policy: str
    workload: str
    rate: float | None
    seed: str
    labels: dict[str, str]
    origin: str
    profile: str
    all: Summary
    first: Summary
    later: Summary
    tenants: dict[str, Summary]
    conversations: int
    routes: dict[str, int]
    fates: dict[str, int]
    within_30_s: float
    tokens_per_s: float
    moved_bytes: int
    moves: int
    preemptions: int
    span_s: float
    simulated_turns: int
    wall_s: float
    """CPU seconds that the run took here; the one number that differs between two runs."""

    def label(self, name: str) -> str:
        return self.labels.get(name, "")


def row_of(result: Result, wall_s: float = 0.0) -> Row:
    """Everything a report may want."""
    spec, turns = result.spec, result.turns
    rates = [stream.rate for stream in spec.streams if stream.rate is not None]
    tenants = sorted({turn.tenant for turn in turns})

    def summary(some: list[TurnRecord]) -> Summary:
        return summarise(some, spec.slo, spec.patience.first_token_s, spec.patience.turn_s)

    began_s = min((turn.at_s for turn in turns), default=0.0)
    span_s = max(result.ended_s - began_s, 1e-9)
    good = sum(turn.output_tokens for turn in turns if turn.fate is Fate.GOOD)
    return Row(
        assignment=spec.assignment,
        policy=spec.policy,
        workload="+".join(stream.workload.name for stream in spec.streams),
        rate=sum(rates) if rates else None,
        seed=spec.seed,
        labels=dict(spec.labels),
        origin="; ".join(stream.workload.origin for stream in spec.streams),
        profile=spec.hardware.profile,
        all=summary(turns),
        first=summary(first_turns(turns)),
        later=summary(later_turns(turns)),
        tenants={
            name: summary([turn for turn in turns if turn.tenant == name]) for name in tenants if len(tenants) > 1
        },
        conversations=len({turn.conversation for turn in turns}),
        routes=dict(sorted(Counter(turn.route or "none" for turn in turns).items())),
        fates={fate.name.lower(): count for fate, count in sorted(Counter(turn.fate for turn in turns).items())},
        within_30_s=sum(turn.fate is Fate.GOOD and turn.e2e_s <= 30.0 for turn in turns) / max(1, len(turns)),
        tokens_per_s=good / span_s,
        moved_bytes=result.link_bytes,
        moves=result.link_transfers,
        preemptions=result.preemptions,
        span_s=span_s,
        simulated_turns=result.all_turns,
        wall_s=wall_s,
    )


def write_jsonl(rows: Iterable[Row], path: Path) -> None:
    """Raises ExperimentError."""
    encoder = msgspec.json.Encoder()
    try:
        path.write_bytes(b"".join(encoder.encode(row) + b"\n" for row in rows))
    except OSError as error:
        raise ExperimentError(f"{path}: cannot be written ({error.strerror})") from None


def read_jsonl(path: Path) -> list[Row]:
    """Raises ExperimentError naming the line."""
    decoder = msgspec.json.Decoder(Row)
    rows = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ExperimentError(f"{path}: cannot be read ({error.strerror})") from None
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(decoder.decode(line))
        except msgspec.MsgspecError as error:
            raise ExperimentError(f"{path}:{number}: {error}") from None
    return rows


def write_parquet(rows: Iterable[Row], path: Path) -> bool:
    """Flat columns; False where pyarrow is not installed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return False
    parquet.write_table(pyarrow.Table.from_pylist([_flat(row) for row in rows]), path)
    return True


def _flat(row: Row) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in msgspec.to_builtins(row).items():
        if isinstance(value, dict):
            flat.update({f"{name}.{inner}": each for inner, each in value.items() if not isinstance(each, dict)})
        else:
            flat[name] = value
    return flat
