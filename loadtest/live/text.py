"""How numbers are written, in a terminal and in Markdown.

Rule of this room: a table is a list of rows of strings; it is set out here and nowhere else.
"""

from __future__ import annotations

import math

from loadtest.live.figures import GROUPS, Group, Percentiles
from loadtest.live.overhead import Overhead
from loadtest.live.results import Result

Rows = list[list[str]]


def ms(seconds: float | None) -> str:
    """Milliseconds; ∞ where too many failed, - where there is nothing."""
    if seconds is None:
        return "-"
    if math.isinf(seconds):
        return "∞"
    value = seconds * 1e3
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _of(values: Percentiles) -> list[str]:
    return [ms(values.p50), ms(values.p90), ms(values.p95), ms(values.p99)]


def latency_rows(groups: dict[str, Group], *, service: bool) -> Rows:
    """A head and a row per figure and group. service: times from sending, too."""
    rows = [["ms", "", "P50", "P90", "P95", "P99"]]
    figures = [("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2E", "e2e")]
    if service:
        figures += [("TTFT from sending", "service_ttft"), ("E2E from sending", "service_e2e")]
    for words, name in figures:
        for group in GROUPS:
            rows.append([words, group, *_of(getattr(groups[group], name))])
    return rows


def count_rows(groups: dict[str, Group]) -> Rows:
    rows = [["", "turns", "success", "within SLO", "good turns/s", "turns/s", "output tokens/s", "cached"]]
    for name in GROUPS:
        group = groups[name]
        cached = None
        if group.cached_tokens is not None and group.prompt_tokens:
            cached = group.cached_tokens / group.prompt_tokens
        rows.append(
            [
                name,
                f"{group.turns:,}",
                share(group.success),
                share(group.within_slo),
                "-" if group.goodput_turns_per_s is None else f"{group.goodput_turns_per_s:.2f}",
                f"{group.turns_per_s:.2f}",
                f"{group.output_tokens_per_s:,.0f}",
                share(cached),
            ]
        )
    return rows


def difference_rows(result: Result) -> Rows:
    rows = [["", "A", "B", "B less A", "interval", "better"]]
    for each in result.differences:
        show = ms if each.lower_is_better else share
        interval = "-" if each.low is None or each.high is None else f"{show_signed(each.low, show)} … "
        if each.low is not None and each.high is not None:
            interval += show_signed(each.high, show)
        change = "-" if each.difference is None else show_signed(each.difference, show)
        rows.append([each.name, show(each.a), show(each.b), change, interval, each.verdict or "not shown"])
    return rows


def show_signed(value: float, show: object) -> str:
    """With its sign; `show` is `ms` or `share`."""
    shown = ms(abs(value)) if show is ms else share(abs(value))
    return f"{'-' if value < 0 else '+'}{shown}"


def fault_lines(result: Result) -> list[str]:
    """One line per endpoint and class of failure."""
    lines = []
    for arm in result.arms:
        for fault, count in arm.groups["all turns"].faults.items():
            detail = f" ({arm.details[fault]})" if arm.details.get(fault) else ""
            lines.append(f"{arm.name}: {count} × {fault}{detail}")
    return lines


def overhead_line(seen: Overhead) -> str:
    per_event = "" if seen.us_per_event is None else f", {seen.us_per_event:.1f} µs per token event"
    waited = "" if seen.waited_share is None else f"it waited for a core {seen.waited_share:.0%} of the time; "
    return (
        f"the load test itself: {seen.cpu_share:.0%} of one core ({seen.cpu_busiest_share:.0%} in the busiest "
        f"second){per_event}; {waited}sends late by "
        f"{ms(seen.late_p50_s)} ms (P50), {ms(seen.late_p99_s)} ms (P99); timers late by {ms(seen.lag_p99_s)} ms "
        f"(P99); at most {seen.most_in_flight} requests in flight"
    )


def notes(result: Result) -> list[str]:
    """What a reader must know to believe the numbers."""
    said = [
        "Times count from the moment a turn was due, not from when it was sent: a stall is seen by all that it delays "
        "(no coordinated omission); times from sending stand beside them.",
        "Failed and timed-out turns count in every percentile as infinite (∞); ITL is of answers that ended well.",
    ]
    if any(arm.without_usage for arm in result.arms):
        said.append("Some answers carried no usage: their tokens are counted as events with text.")
    if result.behind:
        said.append(
            f"{result.behind} turns were due before their conversation's last answer had ended, and waited for it."
        )
    if result.too_long:
        said.append(f"{result.too_long} conversations ended early: their next prompt would not have fitted the model.")
    for arm in result.arms:
        if arm.resent:
            said.append(
                f"{arm.name}: {arm.resent} requests were sent again, on a connection the server had just closed."
            )
    if result.interrupted_s is not None:
        said.append(f"INTERRUPTED after {result.interrupted_s:.0f} s: turns in flight then are not counted.")
    return said


def plain(rows: Rows) -> str:
    """Columns, the first two to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if (column < 2 and not row[1][:1].isdigit()) or column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)


def markdown(rows: Rows) -> str:
    head, *rest = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *rest])


def summary(result: Result) -> str:
    """What the terminal shows in the end."""
    parts = []
    for arm in result.arms:
        parts += [
            f"{arm.name}: {arm.url}",
            plain(count_rows(arm.groups)),
            plain(latency_rows(arm.groups, service=False)),
        ]
    if result.differences:
        parts += [plain(difference_rows(result)), f"verdict: {result.verdict}"]
    parts += fault_lines(result)
    parts += notes(result)[1:]
    parts.append(overhead_line(result.overhead))
    parts += [f"WARNING: {warning}" for warning in result.overhead.warnings]
    return "\n".join(parts)
