"""Idle client connections: as many as this machine's limit of file descriptors allows in a fraction of a second."""

from __future__ import annotations

from pathlib import Path

from loadtest.bench.idle import measure, most_of

SHARE = 0.1
"""Of what one process may have; `python -m loadtest.bench idle` takes them all, and more than one process."""

MOST = 1000
IDLE_S = 2.0


def test_idle_connections_cost_little_and_are_cut_in_time(tmp_path: Path) -> None:
    count = min(MOST, most_of(SHARE))
    assert count > 50, "the limit of file descriptors is too low to show anything (ulimit -Hn)"
    seen = measure(count, IDLE_S, tmp_path)
    assert (seen.connections, seen.gateways) == (count, 1)
    assert seen.kib_each < 12
    assert seen.idle_cpu < 0.2
    assert seen.beside_p50_ms < 1000, "new clients are served beside them"
    assert IDLE_S - 1.5 < seen.cut_first_s <= seen.cut_last_s < IDLE_S + 15
