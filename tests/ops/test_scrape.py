"""One scrape shows all workers."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.net.exchange import Page
from gateway.ops.scrape import Siblings, merged


def exposition(number: int) -> str:
    registry = CollectorRegistry()
    Counter("requests", 'With { and } and " in its help.', ["path"], registry=registry).labels('/a b{"c"}').inc(number)
    Gauge("in_flight", "No labels.", registry=registry).set(10 * number)
    Histogram("seconds", "Buckets.", ["route"], registry=registry).labels("pd").observe(0.1)
    return generate_latest(registry).decode()


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_sample_of_every_worker_is_there_with_the_workers_number() -> None:
    pages = {1: exposition(1), 2: exposition(2)}
    one, two = samples(pages[1]), samples(pages[2])
    both = samples(merged(dict(pages)))
    expected = {
        (name, tuple(sorted([*labels, ("worker", number)]))): value
        for number, found in (("1", one), ("2", two))
        for (name, labels), value in found.items()
    }
    up = {("ppd_worker_up", (("worker", number),)): 1.0 for number in "12"}
    assert both == expected | up
    assert both["requests_total", (("path", '/a b{"c"}'), ("worker", "2"))] == 2.0


def test_a_family_is_described_once_and_stands_together() -> None:
    lines = merged({1: exposition(1), 2: exposition(2)}).splitlines()
    assert lines.count("# TYPE in_flight gauge") == 1
    assert lines.count("# HELP in_flight No labels.") == 1
    at = lines.index("# TYPE in_flight gauge")
    assert lines[at + 1 : at + 3] == ['in_flight{worker="1"} 10.0', 'in_flight{worker="2"} 20.0']


async def test_workers_ask_each_other_and_a_silent_one_is_shown_as_down(tmp_path: Path) -> None:
    workers = [Siblings(tmp_path, n, 3, lambda n=n: Page("text/plain", exposition(n).encode())) for n in (1, 2)]  # type: ignore[misc]
    for worker in workers:
        await worker.start()
    try:
        for worker in workers:
            found = samples((await worker.page()).body.decode())
            assert [found["ppd_worker_up", (("worker", n),)] for n in "123"] == [1.0, 1.0, 0.0]
            assert [found["in_flight", (("worker", n),)] for n in "12"] == [10.0, 20.0]
    finally:
        for worker in workers:
            await worker.stop()
