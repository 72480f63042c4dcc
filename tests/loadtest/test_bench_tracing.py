"""The benchmark of traces measures what it says."""

from __future__ import annotations

from loadtest.bench.tracing import measure


def test_what_is_not_sampled_costs_less_than_what_is() -> None:
    found = measure(requests=50, rounds=3)
    assert found.keys() == {"off", "not sampled", "sampled", "sampled, client's trace"}
    assert found["not sampled"] < found["sampled"]
    assert found["off"] < found["sampled"]
