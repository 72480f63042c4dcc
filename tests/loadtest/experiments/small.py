"""Small experiments for tests."""

from __future__ import annotations

from typing import Any

from loadtest.experiments.run import Spec
from loadtest.experiments.traffic import Extent, Stream
from loadtest.experiments.workloads import LongTurns, Workload

TALK = LongTurns("talk", 3, 512, 64, 32)


def spec(policy: str = "local", *, workload: Workload = TALK, rate: float | None = 2.0, **changes: Any) -> Spec:
    """1P_2D, eight conversations of three turns."""
    values: dict[str, Any] = {
        "assignment": "1P_2D",
        "streams": (Stream(workload, rate),),
        "extent": Extent(conversations=8),
        **changes,
    }
    return Spec(policy=policy, **values)
