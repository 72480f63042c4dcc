"""The queries that panels are made of, and panels of one query.

Rule of this room: workers and gateways are added up (`sum`), what all of them see alike is taken once (`max by`); a
share says 0, not nothing, while there is traffic and none of it is of that kind.
"""

from __future__ import annotations

from deploy.grafana.build import Panel

SCOPE = 'job=~"$job"'
LATER = f'{SCOPE},turn="2+"'
GEN = f'{SCOPE},turn!="none"'
OF_CANARY, OF_BASELINE = (f'{LATER},arm="{arm}"' for arm in ("canary", "baseline"))
RATE = "[$__rate_interval]"
TTFT, TPOT = "gen_ai_server_time_to_first_token_seconds", "gen_ai_server_time_per_output_token_seconds"
E2E, ITL = "gen_ai_server_request_duration_seconds", "ppd_inter_token_latency_seconds"
UP = f'{SCOPE},state="up"'
BAD = 'outcome=~"failed|broken"'
ASKED = 'outcome=~"ok|failed|broken"'


def rate(metric: str, *by: str, where: str = SCOPE) -> str:
    """Per second, summed by labels."""
    return (
        f"sum by ({', '.join(by)}) (rate({metric}{{{where}}}{RATE}))" if by else f"sum(rate({metric}{{{where}}}{RATE}))"
    )


def quantile(share: float, metric: str, *by: str, where: str = SCOPE) -> str:
    """Of a histogram, by labels."""
    return f"histogram_quantile({share:g}, {rate(metric + '_bucket', *by, 'le', where=where)})"


def share(metric: str, part: str, whole: str, *by: str, of: str = "") -> str:
    """The part's share of the whole; both are label selectors. of: the whole's metric, if it is another."""
    top, bottom = rate(metric, *by, where=part), rate(of or metric, *by, where=whole)
    return f"({top} or 0 * {bottom}) / ({bottom} > 0)"


def latest(metric: str, *by: str, where: str = SCOPE) -> str:
    """A gauge that all workers and gateways see alike."""
    return f"max by ({', '.join(by)}) ({metric}{{{where}}})" if by else f"max({metric}{{{where}}})"


def total(metric: str, *by: str) -> str:
    """A gauge that adds up."""
    return f"sum by ({', '.join(by)}) ({metric}{{{SCOPE}}})" if by else f"sum({metric}{{{SCOPE}}})"


def quantiles(title: str, metric: str, *by: str, unit: str = "s", meaning: str = "") -> Panel:
    """Median and p99 over time."""
    legend = " ".join(f"{{{{{label}}}}}" for label in by)
    rows = tuple((quantile(q, metric, *by), f"p{100 * q:g} {legend}".strip()) for q in (0.5, 0.99))
    return Panel(title, rows, unit, meaning=meaning)


def line(title: str, query: str, legend: str = "", unit: str = "short", **more: object) -> Panel:
    """One query over time."""
    return Panel(title, ((query, legend),), unit, **more)  # type: ignore[arg-type]


def stat(title: str, query: str, unit: str = "short", top: float | None = None, **more: object) -> Panel:
    """One number; red from `top` on."""
    return Panel(title, ((query, ""),), unit, kind="stat", top=top, **more)  # type: ignore[arg-type]
