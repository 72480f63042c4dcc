"""One scrape shows all workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from gateway.net.exchange import Page
from gateway.ops.metrics.families import Book, Counter, Histogram, Shown
from gateway.ops.scrape import Siblings
from gateway.ops.scrape import merged as merging


def exposition(number: int) -> bytes:
    book = Book({"worker": str(number)})
    Counter(book, "requests", 'With { and } and " in its help.', ["path"]).child('/a b{"c"}').value += number
    Shown(book, "in_flight", "No labels.", read=lambda parts: [((), 10 * number)])
    Histogram(book, "seconds", "Buckets.", ["route"], bounds=(0.05, 0.5)).child("pd").observe(0.1)
    book.parts = object()  # type: ignore[assignment]
    return "".join(piece for family in book.families for piece in family.text()).encode()


def merged(pages: dict[int, bytes | None]) -> bytes:
    return b"".join(merging(pages))


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def maker(page: bytes) -> Callable[[], Awaitable[Page]]:
    async def make() -> Page:
        return Page("text/plain", page)

    return make


def test_every_sample_of_every_worker_is_there_with_the_workers_number() -> None:
    pages = {1: exposition(1), 2: exposition(2)}
    both = samples(merged(dict(pages)))
    up = {("ppd_worker_up", (("worker", number),)): 1.0 for number in "12"}
    assert both == samples(pages[1]) | samples(pages[2]) | up
    assert both["requests_total", (("path", '/a b{"c"}'), ("worker", "2"))] == 2.0
    assert both["seconds_bucket", (("le", "0.5"), ("route", "pd"), ("worker", "1"))] == 1.0


def test_a_family_is_described_once_and_stands_together() -> None:
    lines = merged({1: exposition(1), 2: exposition(2)}).decode().splitlines()
    assert lines.count("# TYPE in_flight gauge") == 1
    assert lines.count("# HELP in_flight No labels.") == 1
    at = lines.index("# TYPE in_flight gauge")
    assert lines[at + 1 : at + 3] == ['in_flight{worker="1"} 10.0', 'in_flight{worker="2"} 20.0']


def test_a_family_that_only_one_worker_has_children_of_is_whole() -> None:
    empty = b"# HELP requests_total X\n# TYPE requests_total counter\n"
    found = samples(merged({1: empty, 2: exposition(2)}))
    assert found["requests_total", (("path", '/a b{"c"}'), ("worker", "2"))] == 2.0
    assert len([name for name, _ in found if name == "requests_total"]) == 1


async def test_workers_ask_each_other_and_a_silent_one_is_shown_as_down(tmp_path: Path) -> None:
    workers = [Siblings(tmp_path, n, 3, maker(exposition(n))) for n in (1, 2)]
    for worker in workers:
        await worker.start()
    try:
        for worker in workers:
            found = samples((await worker.page()).body)
            assert [found["ppd_worker_up", (("worker", n),)] for n in "123"] == [1.0, 1.0, 0.0]
            assert [found["in_flight", (("worker", n),)] for n in "12"] == [10.0, 20.0]
    finally:
        for worker in workers:
            await worker.stop()
