"""`ppd-gateway explain`: print a decision without a server."""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

from gateway.core.drift.memory import restore
from gateway.core.drift.monitor import Drift, DriftRules
from gateway.core.policies import MeasuredTable, Route, TurnView
from gateway.core.weights import parse_weights
from gateway.net import snapshots
from gateway.ops.config import SIMULATED_TABLE
from gateway.ops.drift import table_id
from gateway.ops.layers import ConfigError
from gateway.ops.tables import open_checked
from lut.table import Arm, TableSet


def add_command(commands: Any) -> None:
    """Mount the command on an argparse sub-parser group."""
    parser = commands.add_parser("explain", help="print the decision for a turn, and what it rests on")
    parser.add_argument("--ctx", type=int, required=True, metavar="N", help="tokens resident on the decode pod")
    parser.add_argument("--new", type=int, required=True, metavar="N", help="tokens to prefill")
    parser.add_argument("--out", type=int, required=True, metavar="N", help="tokens the answer will have")
    parser.add_argument("--qps", type=float, required=True, metavar="R", help="turns per second at the gateway")
    parser.add_argument("--assignment", default="1P_3D", metavar="π", help="pods that are up (default 1P_3D)")
    parser.add_argument("--weights", default="balanced", metavar="W", help="a preset or ttft=2,tpot=1")
    parser.add_argument("--last-route", choices=[Route.PD, Route.LOCAL], help="of the last turn; settles a tie")
    parser.add_argument("--table", type=Path, default=SIMULATED_TABLE, metavar="DIR", help="table set")
    parser.add_argument("--table-lookup", choices=["nearest", "interpolated"], default="nearest")
    parser.add_argument("--state", type=Path, metavar="FILE", help="a gateway's state_file: correct as it would")
    parser.set_defaults(run=_explain)


def _explain(options: argparse.Namespace) -> int:
    try:
        weights = parse_weights(options.weights)
    except ValueError as error:
        raise ConfigError(f"flag --weights: {error}") from None
    tables = open_checked(options.table)
    policy = MeasuredTable(tables, options.table_lookup == "interpolated", drift=_drift(options.state, tables))
    view = TurnView(
        turn=2,
        prompt_tokens=options.ctx + options.new,
        resident_tokens=options.ctx,
        output_tokens=options.out,
        rate=options.qps,
        assignment=options.assignment,
        last_route=None if options.last_route is None else Route(options.last_route),
        weights=weights,
    )
    print(policy.choose(view).reason)
    print(f"table: {tables.describe()}")
    table, _, _ = tables.nearest_assignment(view.assignment)
    cell = (table.interpolated if policy.interpolate else table.nearest)(
        view.resident_tokens, view.new_tokens, view.output_tokens, view.rate
    )
    for name, arm in (("pd", cell.pd), ("local", cell.local), ("readback", cell.readback)):
        if arm is not None:
            print(f"{name:>8}: {_numbers(arm)}")
    return 0


def _drift(path: Path | None, tables: TableSet) -> Drift | None:
    """What a gateway knew of drift. Raises ConfigError."""
    if path is None:
        return None
    drift = Drift(DriftRules(correct=True))
    try:
        snapshot = snapshots.read(path, math.inf, time.time())
        known = None if snapshot is None else snapshot.drift
        if not known or not restore(drift, table_id(tables), known.encode(), 0.0):
            raise ConfigError(f"flag --state: {path} knows nothing of drift against the table {tables.directory}")
    except (snapshots.SnapshotError, ValueError) as error:
        raise ConfigError(f"flag --state: {error}") from None
    return drift


def _numbers(arm: Arm) -> str:
    origin = ("measured", "interpolated", "from the nearest cell")[int(arm.origin)]
    return (
        f"ttft {1000 * arm.ttft_mean:.1f} ms (P99 {1000 * arm.ttft_p99:.1f}), "
        f"tpot {1000 * arm.tpot_mean:.2f} ms (P99 {1000 * arm.tpot_p99:.2f}), "
        f"success {100 * arm.success:.0f} %, {arm.samples:.0f} samples, {origin}"
    )
