"""The dashboard of admission, tenants, targets, and of the table against what is seen.

Rule of this room: as in `boards`, which has the others.
"""

from __future__ import annotations

from deploy.grafana.build import Board, Panel, Row
from deploy.grafana.queries import latest, line, quantiles, rate, stat, total

LIMITS = Board(
    "ppd-limits",
    "PPD gateway / Limits and targets",
    "Who waits, who is refused, what do the targets do, and does the table still hold?",
    (
        Row(
            "Admission",
            (
                stat("Waiting", total("ppd_admission_waiting_requests"), top=100.0),
                stat("Tokens in flight", total("ppd_admission_in_flight_tokens")),
                line(
                    "Waiting, tokens",
                    total("ppd_admission_waiting_tokens", "service_class"),
                    "{{service_class}}",
                    stacked=True,
                ),
                quantiles("Wait of those that had to", "ppd_admission_queued_seconds", "service_class"),
                line(
                    "Refused",
                    rate("ppd_admission_refused_total", "service_class", "reason"),
                    "{{service_class}}: {{reason}}",
                    "reqps",
                    stacked=True,
                ),
            ),
        ),
        Row(
            "Tenants with quotas",
            (
                line("In flight", total("ppd_tenant_in_flight", "tenant"), "{{tenant}}", stacked=True),
                line(
                    "Refused, quota used up",
                    rate("ppd_tenant_refused_total", "tenant"),
                    "{{tenant}}",
                    "reqps",
                    stacked=True,
                ),
            ),
        ),
        Row(
            "Targets",
            (
                line(
                    "Measured by target",
                    latest("ppd_slo_pressure", "service_class", "target"),
                    "{{service_class}} {{target}}",
                    meaning="Above 1 the target is missed.",
                ),
                line("Target", latest("ppd_slo_target", "service_class", "target"), "{{service_class}} {{target}}"),
                Panel(
                    "Controller",
                    (
                        (latest("ppd_slo_step"), "step"),
                        (latest("ppd_slo_weight_factor"), "factor of w_ttft/w_tpot"),
                    ),
                    meaning="Above 0 the weights favour the first token.",
                ),
                line("Steps", rate("ppd_slo_changes_total"), "steps/s"),
            ),
        ),
        Row(
            "The table against what is seen",
            (
                stat("Drifting", f"sum({latest('ppd_table_drift', 'arm', 'latency')})", top=1.0),
                Panel(
                    "Observed by predicted",
                    (
                        (latest("ppd_table_drift_ratio", "arm", "latency"), "{{arm}} {{latency}}, of late"),
                        (latest("ppd_table_drift_reference", "arm", "latency"), "{{arm}} {{latency}}, at first"),
                    ),
                ),
                line("Turns that explore", rate("ppd_explored_turns_total"), "turns/s"),
            ),
        ),
        Row(
            "Load of the pods",
            (
                line("Prompt tokens to compute", total("ppd_pod_pending_tokens", "pod"), "{{pod}}", stacked=True),
                line(
                    "Expected wait",
                    latest("ppd_pod_expected_wait_seconds", "pod"),
                    "{{pod}}",
                    "s",
                    meaning="Only with load_aware or policy queue.",
                ),
            ),
        ),
    ),
)
