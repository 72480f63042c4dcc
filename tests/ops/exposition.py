"""An exposition, read back by prometheus_client's own parser."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def found(page: Samples, name: str, **labels: str) -> float:
    """The sum of the samples of a name that have these labels among theirs."""
    hits = [value for (n, have), value in page.items() if n == name and labels.items() <= dict(have).items()]
    assert hits, f"{name} {labels} is not there"
    return sum(hits)
