"""What is on the dashboards.

Rule of this room: queries are made of the words in `queries`; a panel says what its title does not.
"""

from __future__ import annotations

from deploy.grafana.build import Board, Panel, Row, Variable
from deploy.grafana.goals import CANARY, SLO
from deploy.grafana.limits import LIMITS
from deploy.grafana.queries import (
    ASKED,
    BAD,
    E2E,
    GEN,
    ITL,
    LATER,
    SCOPE,
    TPOT,
    TTFT,
    UP,
    latest,
    line,
    quantile,
    quantiles,
    rate,
    share,
    stat,
    total,
)

ERRORS = share("ppd_requests_total", f"{GEN},{BAD}", f"{GEN},{ASKED}")

OVERVIEW = Board(
    "ppd-overview",
    "PPD gateway / Overview",
    "Is the service well, and what does it do?",
    (
        Row(
            "Now",
            (
                stat("Requests/s", rate("ppd_requests_total", where=GEN), "reqps"),
                stat(
                    "Failed",
                    ERRORS,
                    "percentunit",
                    top=0.01,
                    meaning="Share of those that clients did not cancel or get wrong.",
                ),
                stat("In flight", total("ppd_requests_in_flight")),
                stat("TTFT p99", quantile(0.99, TTFT), "s", top=2.5),
                stat("TPOT p50", quantile(0.5, TPOT), "s", top=0.1),
                stat("Output tokens/s", rate("ppd_tokens_total", where='job=~"$job",kind="output"')),
                stat("Pods up", f"sum({latest('ppd_pods', 'role', 'state', where=UP)})"),
            ),
            height=4,
        ),
        Row(
            "Requests",
            (
                line("By route", rate("ppd_requests_total", "route", where=GEN), "{{route}}", "reqps", stacked=True),
                line(
                    "By outcome", rate("ppd_requests_total", "outcome", where=GEN), "{{outcome}}", "reqps", stacked=True
                ),
                line("In flight by route", total("ppd_requests_in_flight", "route"), "{{route}}", stacked=True),
            ),
        ),
        Row(
            "Latency",
            (
                quantiles("Time to first token", TTFT, "turn"),
                quantiles("Time per output token", TPOT, "turn"),
                quantiles("Gap between reads of a stream (ITL)", ITL, "turn"),
                quantiles("Whole request", E2E, "turn"),
            ),
        ),
        Row(
            "Tokens and KV",
            (
                line("Tokens/s", rate("ppd_tokens_total", "kind"), "{{kind}}"),
                Panel(
                    "KV moved and avoided",
                    (
                        (rate("ppd_kv_moved_bytes_total", "leg"), "moved, {{leg}}"),
                        (rate("ppd_kv_avoided_bytes_total"), "avoided"),
                    ),
                    "Bps",
                    meaning="Avoided: what a prefill pod would have had to send for turns that stayed on D.",
                ),
                Panel(
                    "Input tokens of a request",
                    ((rate("ppd_request_tokens_bucket", "le", where='job=~"$job",kind="input"'), "{{le}}"),),
                    kind="heatmap",
                ),
            ),
        ),
        Row(
            "The gateway itself",
            (
                quantiles("Event loop lag", "ppd_event_loop_lag_seconds", "instance"),
                line("CPU", rate("process_cpu_seconds_total", "instance"), "{{instance}}", "percentunit"),
                line("Memory", total("process_resident_memory_bytes", "instance"), "{{instance}}", "bytes"),
                line("Conversations", total("ppd_conversations", "instance"), "{{instance}}"),
                Panel("Version", ((latest("ppd_build_info", "instance", "version", "policy"), ""),), kind="table"),
            ),
        ),
    ),
)

ROUTING = Board(
    "ppd-routing",
    "PPD gateway / Routing",
    "What is decided, why, and was it right?",
    (
        Row(
            "Decisions",
            (
                line(
                    "Later turns by route",
                    rate("ppd_decisions_total", "route", where=LATER),
                    "{{route}}",
                    "reqps",
                    stacked=True,
                ),
                line("By reason", rate("ppd_decisions_total", "reason"), "{{reason}}", "reqps", stacked=True),
                quantiles("Decision time", "ppd_decision_seconds"),
                line(
                    "Fallbacks",
                    share("ppd_fallbacks_total", SCOPE, SCOPE, "route", of="ppd_decisions_total"),
                    "{{route}}",
                    "percentunit",
                    meaning="Share of the requests that were not answered by their first plan.",
                ),
            ),
        ),
        Row(
            "The score",
            (
                Panel(
                    "S over time",
                    ((rate("ppd_decision_score_bucket", "le"), "{{le}}"),),
                    kind="heatmap",
                    meaning="Above 0: straight to the decode pod.",
                ),
                Panel(
                    "Quantiles of S",
                    tuple((quantile(q, "ppd_decision_score"), f"p{100 * q:g}") for q in (0.1, 0.5, 0.9)),
                ),
            ),
        ),
        Row(
            "The table, held against what happened",
            (
                quantiles(
                    "TTFT, observed / predicted",
                    "ppd_ttft_prediction_ratio",
                    "route",
                    unit="short",
                    meaning="1: as the table says.",
                ),
                quantiles(
                    "TPOT, observed / predicted",
                    "ppd_tpot_prediction_ratio",
                    "route",
                    unit="short",
                    meaning="1: as the table says.",
                ),
                stat(
                    "Age of the table",
                    f"time() - {latest('ppd_table_created_timestamp_seconds')}",
                    "s",
                    top=30 * 86400.0,
                ),
                Panel(
                    "Weights",
                    ((latest("ppd_default_weight", "weight"), "{{weight}}"),),
                    kind="stat",
                    meaning="Defaults.",
                ),
                Panel(
                    "Table in use", ((latest("ppd_table_info", "model", "gpu", "created", "tool"), ""),), kind="table"
                ),
            ),
        ),
        Row(
            "Residency",
            (
                line(
                    "Predictions within a block",
                    share("ppd_residency_predictions_total", 'job=~"$job",verdict="exact"', 'job=~"$job"', "source"),
                    "{{source}}",
                    "percentunit",
                ),
                line("Cached tokens/s", rate("ppd_residency_tokens_total", "source", "kind"), "{{source}}, {{kind}}"),
                line("Off by, tokens/s", rate("ppd_residency_error_tokens_total", "source"), "{{source}}"),
                line(
                    "Prompt tokens found in a cache",
                    share(
                        "ppd_tokens_total", 'job=~"$job",kind="cached"', 'job=~"$job",kind="prompt"', "route", "turn"
                    ),
                    "{{route}}, turn {{turn}}",
                    "percentunit",
                ),
            ),
        ),
        Row(
            "Hand-overs",
            (
                quantiles("Prefill leg", "ppd_prefill_leg_seconds", "turn"),
                line("KV moved, tokens/s", rate("ppd_kv_moved_tokens_total", "leg"), "{{leg}}"),
                line("KV avoided, tokens/s", rate("ppd_kv_avoided_tokens_total", "route"), "{{route}}"),
                stat("KV bytes of a token", latest("ppd_kv_bytes_per_token"), "bytes"),
            ),
        ),
    ),
)

POD = 'job=~"$job",pod=~"$pod"'
PODS = Board(
    "ppd-pods",
    "PPD gateway / Pods",
    "How is each pod?",
    (
        Row(
            "State",
            (
                Panel(
                    "Pods",
                    (
                        (latest("ppd_pod_up", "pod", "role", where=POD), "up"),
                        (latest("ppd_pod_draining", "pod", "role", where=POD), "draining"),
                        (latest("ppd_pod_kv_usage_ratio", "pod", "role", where=POD), "KV use"),
                    ),
                    kind="table",
                    width=12,
                ),
                line("Pods by state", latest("ppd_pods", "role", "state"), "{{role}} {{state}}"),
                line("Breakers open", f'max by (pod) (ppd_pod_breaker{{{POD},state!="closed"}})', "{{pod}}"),
            ),
        ),
        Row(
            "Load",
            (
                line("Requests of the gateways", f"sum by (pod) (ppd_pod_in_flight{{{POD}}})", "{{pod}}"),
                line("Tokens in flight", f"sum by (pod) (ppd_pod_load_tokens{{{POD}}})", "{{pod}}"),
                line("Running, by the pod's word", latest("ppd_pod_running", "pod", where=POD), "{{pod}}"),
                line("Waiting, by the pod's word", latest("ppd_pod_waiting", "pod", where=POD), "{{pod}}"),
            ),
        ),
        Row(
            "Trouble",
            (
                line(
                    "Faults/s",
                    rate("ppd_faults_total", "pod", "kind", where='job=~"$job",pod=~"$pod|none"'),
                    "{{kind}} {{pod}}",
                ),
                line("Restarts", latest("ppd_pod_restarts_total", "pod", where=POD), "{{pod}}"),
                line("Weight", latest("ppd_pod_weight", "pod", where=POD), "{{pod}}"),
                line("Takes later turns straight", latest("ppd_pod_direct", "pod", where=POD), "{{pod}}"),
                line("Retries/s", rate("ppd_retries_total", "result"), "{{result}}"),
            ),
        ),
        Row(
            "KV",
            (
                line("Cache in use", latest("ppd_pod_kv_usage_ratio", "pod", where=POD), "{{pod}}", "percentunit"),
                line("Room the ledger has learned", latest("ppd_ledger_room_tokens", "pod", where=POD), "{{pod}}"),
                line("Blocks announced", latest("ppd_kv_resident_blocks", "pod", where=POD), "{{pod}}"),
                line("Event lag", latest("ppd_kv_event_lag_seconds", "pod", where=POD), "{{pod}}", "s"),
                line("Age of the last events", f"min by (pod) (ppd_kv_event_age_seconds{{{POD}}})", "{{pod}}", "s"),
                line("View complete", f"min by (pod) (ppd_kv_view_complete{{{POD}}})", "{{pod}}"),
            ),
        ),
        Row(
            "Hand-overs on prefill pods",
            (
                line("Waiting for a taker", f"sum by (pod) (ppd_handovers_waiting{{{POD}}})", "{{pod}}"),
                line("Oldest", latest("ppd_handover_oldest_seconds", "pod", where=POD), "{{pod}}", "s"),
                line("Stranded", rate("ppd_handovers_stranded_total", "pod", where=POD), "{{pod}}"),
                line(
                    "Pairs held back",
                    latest("ppd_pairs_held"),
                    meaning="No hand-over until a probe between the two works.",
                ),
                line("Probes of pairs/s", rate("ppd_pair_probes_total", "result"), "{{result}}"),
            ),
        ),
    ),
    (Variable("pod", "ppd_pod_up", "pod"),),
)

BOARDS = (OVERVIEW, ROUTING, PODS, CANARY, SLO, LIMITS)
