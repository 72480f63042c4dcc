"""Rows side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from loadtest.experiments import report
from loadtest.experiments.book import Book, Configuration, Place
from loadtest.experiments.rows import Row, row_of
from loadtest.experiments.run import run
from tests.loadtest.experiments.small import spec

PLACE = Place("talk", 2.0)
PD, LOCAL, REPLICAS = Configuration("1P_2D", "pd"), Configuration("1P_2D", "local"), Configuration("3R", "")


def row(policy: str, seed: str, ttft_ms: float, *, assignment: str = "1P_2D", tokens_per_s: float = 1.0) -> Row:
    base = row_of(run(spec("local")))
    later = msgspec.structs.replace(base.later, ttft_ok_ms=ttft_ms)
    return msgspec.structs.replace(
        base, assignment=assignment, policy=policy, seed=seed, later=later, tokens_per_s=tokens_per_s
    )


@pytest.fixture(scope="module")
def book() -> Book:
    rows = [row("pd", seed, ttft) for seed, ttft in (("1", 100.0), ("2", 200.0), ("3", 300.0))]
    rows += [row("local", seed, ttft) for seed, ttft in (("1", 40.0), ("2", 80.0), ("3", 120.0))]
    rows += [row("pd", seed, 80.0, assignment="3R", tokens_per_s=2.0) for seed in "123"]
    return Book(rows)


def test_replicas_are_one_configuration_whatever_the_policy(book: Book) -> None:
    assert book.configurations(PLACE) == [PD, LOCAL, REPLICAS]
    assert [str(each) for each in book.configurations(PLACE)] == ["1P_2D pd", "1P_2D local", "3R"]


def test_values_are_means_over_seeds_and_differences_are_paired(book: Book) -> None:
    assert book.value(PLACE, PD, "later.ttft_ok_ms").mean == pytest.approx(200)
    change = book.difference(PLACE, LOCAL, PD, "later.ttft_ok_ms")
    assert change.mean == pytest.approx(-0.6)
    assert change.half == pytest.approx(0.0, abs=1e-9)


def test_the_best_is_the_lowest_or_the_highest_and_ties_are_all_of_them(book: Book) -> None:
    assert book.winners(PLACE, "later.ttft_ok_ms") == [LOCAL, REPLICAS]
    assert book.best(PLACE, "later.ttft_ok_ms", [PD, REPLICAS]) == REPLICAS
    assert book.best(PLACE, "tokens_per_s") == REPLICAS
    assert book.winners(PLACE, "all.success") == [PD, LOCAL, REPLICAS]


def test_a_report_has_intervals_for_three_seeds_and_none_for_two(book: Book, tmp_path: Path) -> None:
    rows = [row("pd", seed, ttft) for seed, ttft in (("1", 100.0), ("2", 200.0), ("3", 300.0))]
    assert report.shown("later.ttft_ok_ms", book.value(PLACE, PD, "later.ttft_ok_ms")) == "200 ± 248"
    two = Book(rows[:2])
    assert report.shown("later.ttft_ok_ms", two.value(PLACE, PD, "later.ttft_ok_ms")) == "150"
    text = report.write(rows, tmp_path, "Title", ["A note."]).read_text(encoding="utf-8")
    assert text.startswith("# Title\n")
    assert "- A note." in text


def test_an_endless_percentile_is_shown_as_that() -> None:
    late = row_of(run(spec("local", patience=replace(spec().patience, first_token_s=0.001))))
    value = Book([late]).value(PLACE, LOCAL, "all.ttft_p99_ms")
    assert report.shown("all.ttft_p99_ms", value) == "∞"
