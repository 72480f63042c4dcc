"""The live table as a picture: S for every context and prompt size, and where the current traffic lies.

Rule of this room: worked out when it is asked for, of the table and the policy's last turns; nothing is kept.
"""

from __future__ import annotations

import math
from statistics import median
from typing import Any

from gateway.core.policies import MeasuredTable
from gateway.core.weights import Weights
from gateway.ops.admin.schemas import Heatmap, HeatmapQuery
from lut.table import score


def heatmap(policy: MeasuredTable, query: HeatmapQuery, weights: Weights, assignment: str) -> Heatmap:
    """Raises ValueError for weights that are none."""
    w_ttft = weights.w_ttft if query.w_ttft is None else query.w_ttft
    w_tpot = weights.w_tpot if query.w_tpot is None else query.w_tpot
    wanted = Weights(w_ttft, w_tpot)
    recent = list(policy.recent)
    output = _middle(query.output_tokens, [point[2] for point in recent], 128.0)
    rate = _middle(query.rate, [point[3] for point in recent], 1.0)
    if not (math.isfinite(output) and math.isfinite(rate)):
        raise ValueError("output_tokens and rate must be numbers that are not beyond all bounds")
    table, used, _ = policy.tables.nearest_assignment(query.assignment or assignment)
    contexts, news = table.axes.values[0], table.axes.values[1]
    cells = [[table.nearest(context, new, output, rate) for new in news] for context in contexts]
    found = [[score(cell, wanted.w_ttft, wanted.w_tpot) for cell in row] for row in cells]
    counts = [[0] * len(news) for _ in contexts]
    context_scale, new_scale = table.axes.scales()[:2]
    for context, new, _, _ in recent:
        counts[context_scale.nearest(context)][new_scale.nearest(new)] += 1
    return Heatmap(
        assignment=used,
        w_ttft=w_ttft,
        w_tpot=w_tpot,
        output_tokens=output,
        rate=rate,
        context_tokens=list(contexts),
        new_tokens=list(news),
        s=[[round(each.s, 4) if math.isfinite(each.s) else 0.0 for each in row] for row in found],
        routes=[[each.route for each in row] for row in found],
        counts=counts,
    )


def merged(parts: list[Heatmap], _: Any) -> Heatmap:
    """The counts of all workers."""
    first = parts[0]
    for other in parts[1:]:
        if (other.context_tokens, other.new_tokens) == (first.context_tokens, first.new_tokens):
            pairs = zip(first.counts, other.counts, strict=True)
            first.counts = [[a + b for a, b in zip(ours, theirs, strict=True)] for ours, theirs in pairs]
    return first


def _middle(asked: float | None, seen: list[float] | list[int], otherwise: float) -> float:
    if asked is not None:
        return asked
    return float(median(seen)) if seen else otherwise
