"""The benchmark of the load test's own cost: it runs and prints what it measured."""

from __future__ import annotations

import json
import sys

import pytest

from loadtest.bench import __main__ as bench
from loadtest.bench.proxy import build

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="NO C COMPILER: the mock of vLLM cannot be built")


def test_every_stream_is_held_and_every_token_seen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("loadtest.bench.loadtest.RAMP_S", 0.2)
    monkeypatch.setattr(
        sys, "argv", ["bench", "loadtest", "--streams", "5,20", "--gap-ms", "20", "--hold-s", "1", "--json"]
    )
    assert bench.main() == 0
    out = capsys.readouterr().out
    rows = json.loads(out.splitlines()[-1])["rows"]
    assert [(row["streams"], row["ok"], row["open_at_once"]) for row in rows] == [(5, 5, 5), (20, 20, 20)]
    assert all(row["us_per_event"] > 0 for row in rows)
    assert all(15 < row["itl_p50_ms"] < 500 for row in rows), "20 ms on a machine that has time"
    assert "us/event" in out


def test_a_number_that_is_none_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "loadtest", "--streams", "many"])
    assert bench.main() == 2
    assert "many" in capsys.readouterr().err
