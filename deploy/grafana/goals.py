"""The dashboards of the canary and of the goals.

Rule of this room: as in `boards`, which has the others.
"""

from __future__ import annotations

from deploy.grafana.build import Board, Panel, Row
from deploy.grafana.queries import (
    ASKED,
    BAD,
    E2E,
    GEN,
    ITL,
    LATER,
    OF_BASELINE,
    OF_CANARY,
    TPOT,
    TTFT,
    latest,
    line,
    quantile,
    quantiles,
    rate,
    share,
    stat,
    total,
)

CANARY = Board(
    "ppd-canary",
    "PPD gateway / Canary",
    "Is the policy better than the plain proxy beside it?",
    (
        Row(
            "State",
            (
                Panel("State", ((latest("ppd_canary_state", "state") + " == 1", "{{state}}"),), kind="stat", width=4),
                stat("Percent", latest("ppd_canary_percent"), "percent", width=4),
                stat("Stops", total("ppd_canary_stops_total"), top=1.0, width=4),
                line("Requests by arm", rate("ppd_requests_total", "arm", where=GEN), "{{arm}}", "reqps", stacked=True),
            ),
            height=6,
        ),
        Row(
            "Later turns",
            (
                line(
                    "Failed",
                    share("ppd_requests_total", f"{GEN},{BAD}", f"{GEN},{ASKED}", "arm"),
                    "{{arm}}",
                    "percentunit",
                ),
                Panel(
                    "TTFT",
                    tuple((quantile(q, TTFT, "arm", where=LATER), f"p{100 * q:g} {{{{arm}}}}") for q in (0.5, 0.99)),
                    "s",
                ),
                Panel(
                    "TPOT",
                    tuple((quantile(q, TPOT, "arm", where=LATER), f"p{100 * q:g} {{{{arm}}}}") for q in (0.5, 0.99)),
                    "s",
                ),
            ),
        ),
        Row(
            "Canary over baseline (below 1: the canary is better)",
            (
                line(
                    "Median TTFT of later turns",
                    f"{quantile(0.5, TTFT, where=OF_CANARY)} / {quantile(0.5, TTFT, where=OF_BASELINE)}",
                    "canary / baseline",
                ),
                line(
                    "Median TPOT of later turns",
                    f"{quantile(0.5, TPOT, where=OF_CANARY)} / {quantile(0.5, TPOT, where=OF_BASELINE)}",
                    "canary / baseline",
                ),
                quantiles("First turns: TTFT", TTFT, "arm"),
            ),
        ),
        Row(
            "Where they go",
            (
                line("Routes", rate("ppd_decisions_total", "arm", "route"), "{{arm}} {{route}}", "reqps"),
                quantiles("ITL", ITL, "arm"),
                quantiles("Whole request", E2E, "arm"),
                line("KV avoided, tokens/s", rate("ppd_kv_avoided_tokens_total", "arm"), "{{arm}}"),
                line(
                    "Shadow: what would have been",
                    rate("ppd_canary_shadow_decisions_total", "route"),
                    "{{route}}",
                    "reqps",
                ),
            ),
        ),
    ),
)

SLO = Board(
    "ppd-slo",
    "PPD gateway / SLO",
    "Goals: 99.9 % answered whole, 99 % of streams begin within 2.5 s (deploy/prometheus/rules).",
    (
        Row(
            "Now",
            (
                stat("Answered whole, 6 h", 'min(1 - ppd:errors:ratio_rate6h{job=~"$job"})', "percentunit"),
                stat("Begun within 2.5 s, 1 h", 'min(1 - ppd:ttft_slow:ratio_rate1h{job=~"$job"})', "percentunit"),
                stat(
                    "Burn rate, 1 h",
                    'max(ppd:errors:ratio_rate1h{job=~"$job"}) / 0.001',
                    top=6.0,
                    meaning="1: the budget lasts a month exactly.",
                ),
                Panel("Alerts", (("ALERTS", ""),), kind="table", width=12),
            ),
            height=6,
        ),
        Row(
            "Error budget",
            (
                Panel(
                    "Burn rate of failures",
                    tuple(
                        (f'max by (job) (ppd:errors:ratio_rate{window}{{job=~"$job"}}) / 0.001', window)
                        for window in ("5m", "30m", "1h", "6h")
                    ),
                ),
                Panel(
                    "Burn rate of late streams",
                    tuple(
                        (f'max by (job) (ppd:ttft_slow:ratio_rate{window}{{job=~"$job"}}) / 0.01', window)
                        for window in ("5m", "1h")
                    ),
                ),
            ),
        ),
        Row(
            "What is behind it",
            (
                line("TTFT p99", 'ppd:ttft_seconds:p99_rate5m{job=~"$job"}', "{{arm}}, turn {{turn}}", "s"),
                line("TPOT p99", 'ppd:tpot_seconds:p99_rate5m{job=~"$job"}', "{{arm}}, turn {{turn}}", "s"),
                line(
                    "Failures by status",
                    rate("ppd_requests_total", "status", where=f"{GEN},{BAD}"),
                    "{{status}}",
                    "reqps",
                ),
                line(
                    "Requests", 'sum by (route) (ppd:requests:rate5m{job=~"$job"})', "{{route}}", "reqps", stacked=True
                ),
            ),
        ),
    ),
)
