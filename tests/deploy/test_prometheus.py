"""Every query of every panel and rule, asked of a real Prometheus that scrapes a gateway under load.

All is asked in one go, again and again until nothing is missing or the time is up; the tests then look at the answers.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.deploy.load import busy_gateway
from tests.deploy.rules import RULES, panels, rules
from tests.net.world import World
from tests.prometheus_server import PrometheusServer, needs_prometheus

pytestmark = needs_prometheus

TIME_S = 60.0
EMPTY = {
    "ppd_canary_shadow_decisions_total": "in shadow everything is carried out as the baseline: no two arms beside it",
    "ppd_pair_probes_total": "no pod is restarted under this load",
    "ppd_admission_refused_total": "whoever waits is let in in time",
    "ppd_tenant_in_flight": "its clients have no keys, so there are no tenants",
    "ppd_tenant_refused_total": "its clients have no keys, so there are no tenants",
    "ppd_pod_expected_wait_seconds": "load_aware is off",
}
"""Metrics that this load has none of, and why."""

PANELS = [pytest.param(query, id=f"{board}: {panel}") for board, panel, query in panels()]
RECORDED = [rule["record"] for rule in rules() if "record" in rule]


@dataclass(frozen=True)
class Seen:
    """answers: by query. rules: as Prometheus has evaluated them. targets: what it scrapes."""

    answers: Mapping[str, Mapping[str, Any]]
    rules: Mapping[str, Mapping[str, Any]]
    targets: list[Mapping[str, Any]]
    routes: set[tuple[str | None, str]]


def configuration(w: World) -> str:
    files = "".join(f"  - {path}\n" for path in sorted(RULES.glob("*.yml")))
    return (
        f"global: {{scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}}\nrule_files:\n{files}"
        "scrape_configs:\n  - job_name: ppd-gateway\n    static_configs: "
        f'[{{targets: ["{w.url.removeprefix("http://")}"]}}]\n'
    )


def asked() -> list[str]:
    return [*dict.fromkeys(query for _, _, query in panels()), *RECORDED]


def numbers(answer: Mapping[str, Any]) -> list[float]:
    """The values of an answer that are numbers."""
    assert answer["status"] == "success", answer
    found = [float(sample["value"][1]) for sample in answer["data"]["result"]]
    return [value for value in found if not math.isnan(value)]


def expects_nothing(query: str) -> bool:
    return any(name in query for name in EMPTY)


async def look(folder: Path) -> Seen:
    async with busy_gateway(folder) as w:
        async with PrometheusServer(configuration(w), w.session) as prometheus:
            loop = asyncio.get_running_loop()
            until = loop.time() + TIME_S
            while True:
                answers = {query: await prometheus.get("query", query=query) for query in asked()}
                missing = [
                    q for q, a in answers.items() if not expects_nothing(q) and not (a.get("data") and numbers(a))
                ]
                groups = (await prometheus.get("rules"))["data"]["groups"]
                evaluated = {rule["name"]: rule for group in groups for rule in group["rules"]}
                waiting = [rule for rule in evaluated.values() if rule["health"] == "unknown"]
                if loop.time() > until or not (missing or waiting):
                    break
                await asyncio.sleep(0.25)
            targets = (await prometheus.get("targets"))["data"]["activeTargets"]
            return Seen(answers, evaluated, targets, {(record.route, record.arm) for record in w.watcher.records})


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(look(tmp_path_factory.mktemp("prometheus")))


def test_prometheus_takes_the_page(seen: Seen) -> None:
    (target,) = seen.targets
    assert (target["health"], target["lastError"]) == ("up", "")


def test_the_load_had_all_routes_and_both_arms(seen: Seen) -> None:
    assert {route for route, _ in seen.routes} >= {"pd", "local", "readback", "replica"}
    assert {arm for route, arm in seen.routes if route == "pd"} == {"canary", "baseline"}


@pytest.mark.parametrize("query", PANELS)
def test_a_panel_shows_something(query: str, seen: Seen) -> None:
    found = numbers(seen.answers[query])
    if expects_nothing(query):
        assert not found, "it has something to show now: take its metric out of EMPTY"
    else:
        assert found


@pytest.mark.parametrize("name", RECORDED)
def test_a_recording_rule_has_a_value(name: str, seen: Seen) -> None:
    assert numbers(seen.answers[name])


def test_every_rule_was_evaluated_without_an_error(seen: Seen) -> None:
    assert {rule.get("record") or rule["alert"] for rule in rules()} == set(seen.rules)
    faults = {name: rule.get("lastError") for name, rule in seen.rules.items() if rule["health"] != "ok"}
    assert faults == {}


def test_an_open_breaker_is_on_its_way_to_an_alert(seen: Seen) -> None:
    assert seen.rules["PpdBreakerOpen"]["state"] == "pending"
    assert seen.rules["PpdNoDecodePod"]["state"] == "inactive"
