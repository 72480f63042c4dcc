"""promtool's word on the rules, and for every alert: when it fires, and that it is quiet otherwise.

A case is series in promtool's notation, one value a minute: `0+60x60` counts 60 more each minute for an hour.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gateway.ops.metrics import Metrics
from loadtest.bench.metrics import make_parts, make_records
from tests.deploy.rules import DEPLOY, RULES, alerts
from tests.prometheus_server import needs_prometheus, promtool

DOCS = DEPLOY.parent / "docs"
GATEWAY, POD = 'job="ppd-gateway",instance="g:80"', 'pod="http://x"'
JOB = {"job": "ppd-gateway"}
ON_POD = {**JOB, "pod": "http://x"}
ON_INSTANCE = {**JOB, "instance": "g:80"}
ROUTED = 'turn="1",arm="canary",route="pd"'


def requests(ok: str, failed: str) -> dict[str, str]:
    """Requests answered and failed."""
    return {
        f'ppd_requests_total{{{GATEWAY},{ROUTED},outcome="ok"}}': ok,
        f'ppd_requests_total{{{GATEWAY},{ROUTED},outcome="failed"}}': failed,
        f'ppd_requests_total{{{GATEWAY},{ROUTED},outcome="cancelled"}}': "0+1000x400",
    }


def streams(in_time: str, all_of_them: str) -> dict[str, str]:
    name = "gen_ai_server_time_to_first_token_seconds"
    return {f'{name}_bucket{{{GATEWAY},le="2.5"}}': in_time, f"{name}_count{{{GATEWAY}}}": all_of_them}


def refused(**reasons: str) -> dict[str, str]:
    """Requests that were not let in, by reason."""
    name = f'ppd_admission_refused_total{{{GATEWAY},service_class="standard",reason='
    return {f'{name}"{reason}"}}': values for reason, values in reasons.items()}


def ratios(low: str, high: str) -> dict[str, str]:
    """Observed over predicted TTFT: those up to 1.5, and all, up to 4."""
    name = f'ppd_ttft_prediction_ratio_bucket{{{GATEWAY},route="local",le='
    return {f'{name}"1.5"}}': low, f'{name}"4.0"}}': high, f'{name}"+Inf"}}': high}


def lag(late: str, of: str) -> dict[str, str]:
    """Timers that were up to 25 ms late, and all, up to 250 ms."""
    name = f"ppd_event_loop_lag_seconds_bucket{{{GATEWAY},le="
    return {f'{name}"0.025"}}': late, f'{name}"0.25"}}': of, f'{name}"+Inf"}}': of}


def gauge(name: str, labels: str, values: str) -> dict[str, str]:
    return {f"{name}{{{GATEWAY}{',' if labels else ''}{labels}}}": values}


@dataclass(frozen=True)
class Case:
    """bad: series that make it fire after `at` minutes, with these labels; good: series that do not."""

    bad: dict[str, str]
    good: dict[str, str]
    at: int
    labels: dict[str, str] = field(default_factory=lambda: JOB)


SHARED = f"ppd_shared_state_total{{{GATEWAY},"
CASES = {
    "PpdErrorBudgetBurnsFast": Case(requests("0+97x120", "0+3x120"), requests("0+99x120", "0+1x120"), 60),
    "PpdErrorBudgetBurnsSlowly": Case(requests("0+99x400", "0+1x400"), requests("0+999x400", "0+1x400"), 390),
    "PpdTtftBudgetBurns": Case(streams("0+80x120", "0+100x120"), streams("0+90x120", "0+100x120"), 60),
    "PpdErrorRate": Case(requests("0+90x30", "0+10x30"), requests("0+97x30", "0+3x30"), 15),
    "PpdGatewayDown": Case({f"up{{{GATEWAY}}}": "0x10"}, {f"up{{{GATEWAY}}}": "1x10"}, 3, ON_INSTANCE),
    "PpdWorkerDown": Case(
        gauge("ppd_worker_up", 'worker="2"', "0x10"),
        gauge("ppd_worker_up", 'worker="2"', "1x10"),
        3,
        {**ON_INSTANCE, "worker": "2"},
    ),
    "PpdEventLoopLag": Case(lag("0+90x20", "0+100x20"), lag("0+100x20", "0+100x20"), 12, ON_INSTANCE),
    "PpdRetriesDenied": Case(
        gauge("ppd_retries_total", 'result="denied"', "0+1x20"),
        gauge("ppd_retries_total", 'result="denied"', "7x20"),
        12,
    ),
    "PpdFallbacks": Case(
        gauge("ppd_fallbacks_total", "", "0+10x30") | gauge("ppd_decisions_total", "", "0+100x30"),
        gauge("ppd_fallbacks_total", "", "0+1x30") | gauge("ppd_decisions_total", "", "0+100x30"),
        20,
    ),
    "PpdRequestsRefused": Case(
        requests("0+90x30", "0+0x30") | refused(deadline="0+6x30", shed="0+4x30"),
        requests("0+96x30", "0+0x30") | refused(deadline="0+4x30", quota="0+50x30"),
        20,
    ),
    "PpdSharedStateFails": Case(
        {f'{SHARED}op="ask",result="hit"}}': "0+8x20", f'{SHARED}op="ask",result="timeout"}}': "0+2x20"},
        {f'{SHARED}op="ask",result="hit"}}': "0+99x20", f'{SHARED}op="ask",result="timeout"}}': "0+1x20"},
        12,
        {**JOB, "op": "ask"},
    ),
    "PpdStateFileFails": Case(
        gauge("ppd_state_file_writes_total", 'result="failed"', "0 0 1x20"),
        gauge("ppd_state_file_writes_total", 'result="failed"', "3x20"),
        10,
        ON_INSTANCE,
    ),
    "PpdNoDecodePod": Case(
        gauge("ppd_pods", 'role="decode",state="up"', "0x10") | gauge("ppd_pods", 'role="decode",state="down"', "2x10"),
        gauge("ppd_pods", 'role="decode",state="up"', "0x10") | gauge("ppd_pods", 'role="replica",state="up"', "1x10"),
        3,
        ON_INSTANCE,
    ),
    "PpdNoPrefillPod": Case(
        gauge("ppd_pod_up", f'{POD},role="prefill"', "0x10"),
        gauge("ppd_pod_up", f'{POD},role="prefill"', "0x10")
        | gauge("ppd_pod_up", 'pod="http://y",role="prefill"', "1x10"),
        3,
        ON_INSTANCE,
    ),
    "PpdPodDown": Case(
        gauge("ppd_pod_up", f'{POD},role="prefill"', "0x10"),
        gauge("ppd_pod_up", f'{POD},role="prefill"', "0 0 0 1 0 0 0 1 0 0 0"),
        8,
        {**ON_POD, "role": "prefill"},
    ),
    "PpdBreakerOpen": Case(
        gauge("ppd_pod_breaker", f'{POD},state="open"', "1x10"),
        gauge("ppd_pod_breaker", f'{POD},state="open"', "0x10"),
        5,
        ON_POD,
    ),
    "PpdPodQueues": Case(
        gauge("ppd_pod_waiting", f'{POD},role="decode"', "20x10"),
        gauge("ppd_pod_waiting", f'{POD},role="prefill"', "20x10"),
        8,
        {**ON_POD, "role": "decode"},
    ),
    "PpdPairsHeld": Case(gauge("ppd_pairs_held", "", "2x20"), gauge("ppd_pairs_held", "", "2x5 0x15"), 15, ON_INSTANCE),
    "PpdHandoversStranded": Case(
        gauge("ppd_handovers_stranded_total", POD, "0+1x20"),
        gauge("ppd_handovers_stranded_total", POD, "0 0 3x20"),
        15,
        ON_POD,
    ),
    "PpdKvEventLag": Case(
        gauge("ppd_kv_event_lag_seconds", POD, "2x10"), gauge("ppd_kv_event_lag_seconds", POD, "0.01x10"), 8, ON_POD
    ),
    "PpdKvViewIncomplete": Case(
        gauge("ppd_kv_view_complete", POD, "0x40"), gauge("ppd_kv_view_complete", POD, "0x20 1x20"), 35, ON_POD
    ),
    "PpdResidencyWrong": Case(
        gauge("ppd_residency_predictions_total", f'{POD},verdict="over"', "0+3x70")
        | gauge("ppd_residency_predictions_total", f'{POD},verdict="exact"', "0+7x70"),
        gauge("ppd_residency_predictions_total", f'{POD},verdict="over"', "0+1x70")
        | gauge("ppd_residency_predictions_total", f'{POD},verdict="exact"', "0+9x70"),
        65,
        ON_POD,
    ),
    "PpdTableStale": Case(
        gauge("ppd_table_created_timestamp_seconds", "", f"{-31 * 86400}x100"),
        gauge("ppd_table_created_timestamp_seconds", "", f"{-29 * 86400}x100"),
        65,
    ),
    "PpdTableRefused": Case(
        gauge("ppd_table_changes_total", 'result="refused"', "0 0 1x20"),
        gauge("ppd_table_changes_total", 'result="taken"', "0 0 1x20"),
        10,
    ),
    "PpdTableMispredicts": Case(
        ratios("0+10x70", "0+100x70"), ratios("0+60x70", "0+100x70"), 65, {**JOB, "route": "local"}
    ),
    "PpdTableDrift": Case(
        gauge("ppd_table_drift", 'arm="pd",latency="ttft"', "0 1x30"),
        gauge("ppd_table_drift", 'arm="pd",latency="ttft"', "0 1x5 0x30"),
        15,
        {**JOB, "arm": "pd", "latency": "ttft"},
    ),
    "PpdCanaryStopped": Case(
        gauge("ppd_canary_state", 'state="stopped"', "0 0 1x10"), gauge("ppd_canary_state", 'state="on"', "1x10"), 3
    ),
}


def said(alert: dict[str, Any], labels: dict[str, str]) -> dict[str, str]:
    """An alert's annotations, the labels filled in."""
    return {
        name: re.sub(r"{{ \$labels\.(\w+) }}", lambda found: labels[found[1]], text)
        for name, text in alert["annotations"].items()
    }


def expected(name: str, case: Case) -> dict[str, Any]:
    alert = alerts()[name]
    labels = {**case.labels, "severity": alert["labels"]["severity"]}
    return {"exp_labels": labels, "exp_annotations": said(alert, case.labels)}


def unit_test(name: str, series: dict[str, str], checks: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    return {
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "alert_rule_test": [
            {"eval_time": f"{minutes}m", "alertname": name, "exp_alerts": found} for minutes, found in checks.items()
        ],
    }


def run(folder: Path, tests: list[dict[str, Any]], every: str = "1m") -> str:
    """promtool's complaints, nothing when all is as expected. every: how often rules are evaluated."""
    file = folder / "test.yml"
    content = {"rule_files": [str(path) for path in sorted(RULES.glob("*.yml"))], "evaluation_interval": every}
    file.write_text(yaml.safe_dump({**content, "tests": tests}), encoding="utf-8")
    done = promtool("test", "rules", file)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@needs_prometheus
def test_promtool_finds_no_fault() -> None:
    metrics = Metrics()
    for record in make_records(1):
        metrics.started(record)
        metrics.finished(record)
    page = metrics.page(make_parts(8)).body.decode()
    done = promtool("check", "metrics", given=page)
    assert (done.returncode, done.stdout + done.stderr) == (0, ""), "names, units, help: Prometheus' own conventions"
    for done in (
        promtool("check", "rules", *sorted(RULES.glob("*.yml"))),
        promtool("check", "config", DEPLOY / "prometheus" / "prometheus.yml"),
    ):
        assert done.returncode == 0, done.stdout + done.stderr
        assert "SUCCESS" in done.stdout


def test_every_alert_has_a_case_a_severity_and_a_section_of_its_own_in_the_docs() -> None:
    assert set(CASES) == set(alerts())
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    sections = {line.removeprefix("### ") for line in page.splitlines() if line.startswith("### Ppd")}
    assert sections == set(alerts())
    for name, alert in alerts().items():
        assert alert["labels"]["severity"] in ("page", "ticket")
        assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
        assert alert["annotations"]["runbook_url"] == f"docs/troubleshooting.md#{name.lower()}"


@needs_prometheus
def test_every_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    quick: list[dict[str, Any]] = []
    slow: list[dict[str, Any]] = []
    for name, case in CASES.items():
        tests = slow if case.at > 30 else quick
        at_once = "for" not in alerts()[name]
        before = {} if at_once else {0: []}
        tests.append(unit_test(name, case.bad, {**before, case.at: [expected(name, case)]}))
        tests.append(unit_test(name, case.good, {**before, case.at: []}))
    assert run(tmp_path, quick) == ""
    assert run(tmp_path, slow, every="5m") == ""


@needs_prometheus
def test_a_wrong_expectation_is_seen(tmp_path: Path) -> None:
    case = CASES["PpdCanaryStopped"]
    assert "FAILED" in run(
        tmp_path, [unit_test("PpdCanaryStopped", case.good, {case.at: [expected("PpdCanaryStopped", case)]})]
    )
