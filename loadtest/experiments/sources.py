"""Workloads by what a person types: `chat`, `sharegpt`, `wildchat:FILE`, `trace:FILE`, `0.7*chat+0.3*paste`.

Rule of this room: the one place where such a text is read.
"""

from __future__ import annotations

from pathlib import Path

from loadtest.experiments import datasets, trace_files
from loadtest.experiments.datasets import Filter
from loadtest.experiments.errors import ExperimentError
from loadtest.experiments.published_chats import PUBLISHED, PublishedChats
from loadtest.experiments.workloads import SYNTHETIC, Mixed, Workload, synthetic

DATASET_LIMIT = 2000
"""Conversations that are read of a file; they are repeated when more are wanted."""

HELP = "a synthetic one, sharegpt[:FILE], wildchat[:FILE], trace:FILE, or a mix like 0.7*chat+0.3*paste"


def resolve(text: str, limit: int = DATASET_LIMIT) -> Workload:
    """Raises ExperimentError."""
    if "+" in text or "*" in text:
        return Mixed(tuple(_part(part, limit) for part in text.split("+")))
    kind, colon, file = text.partition(":")
    if kind == "trace" and colon:
        return trace_files.load(Path(file))
    if kind in PUBLISHED:
        return datasets.load(kind, Path(file), Filter(), limit) if colon else PublishedChats(kind, PUBLISHED[kind])
    if colon or text not in SYNTHETIC:
        known = ", ".join((*SYNTHETIC, *PUBLISHED))
        raise ExperimentError(f"unknown workload {text!r}; known: {known}, and files: sharegpt:, wildchat:, trace:")
    return synthetic(text)


def _part(text: str, limit: int) -> tuple[float, Workload]:
    share, star, name = text.partition("*")
    try:
        value = float(share) if star else 1.0
        if not 0 < value < 1e6:
            raise ValueError
    except ValueError:
        raise ExperimentError(f"mix: {text!r} is not like 0.7*chat") from None
    return value, resolve(name if star else share, limit)
