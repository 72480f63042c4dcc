"""The dashboards' files: made by the generator, and of a shape that Grafana takes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import yaml

from deploy.grafana.boards import BOARDS
from deploy.grafana.build import SCHEMA_VERSION, WIDTH, render
from gateway.ops.metrics import Metrics
from tests.deploy.rules import DASHBOARDS, DEPLOY, boards, metrics_in, panels, rules

each_board = pytest.mark.parametrize("board", boards().values(), ids=boards())


def exposed() -> set[str]:
    """Every name of a sample that the gateway may show."""
    names = {"ppd_worker_up"}
    for name, kind, _, _ in Metrics().described():
        names |= {f"{name}_bucket", f"{name}_count", f"{name}_sum"} if kind == "histogram" else {name}
    return names - {"ppd_decision_score_sum"}


def test_the_files_are_what_the_generator_writes() -> None:
    assert {path.stem: path.read_text(encoding="utf-8") for path in DASHBOARDS} == {
        board.uid: render(board) for board in BOARDS
    }, "run `python deploy/grafana/build.py`"


@each_board
def test_ids_are_unique_and_panels_do_not_overlap(board: dict[str, Any]) -> None:
    assert board["schemaVersion"] == SCHEMA_VERSION
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert 0 < place["w"] <= WIDTH
        assert place["x"] + place["w"] <= WIDTH
        cells = set(
            itertools.product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"]))
        )
        assert not cells & taken, panel["title"]
        taken |= cells


@each_board
def test_every_panel_can_be_drawn(board: dict[str, Any]) -> None:
    assert board["uid"]
    assert board["title"].startswith("PPD gateway / ")
    for panel in board["panels"]:
        assert panel["type"] in {"row", "timeseries", "stat", "table", "heatmap"}
        assert panel["title"]
        if panel["type"] == "row":
            continue
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["unit"]
        references = [target["refId"] for target in panel["targets"]]
        assert references
        assert len(references) == len(set(references))
        assert all(target["range"] is not target["instant"] for target in panel["targets"])


@each_board
def test_variables_ask_for_what_is_exposed(board: dict[str, Any]) -> None:
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    for variable in variables.values():
        if variable["type"] == "query":
            assert metrics_in(variable["definition"]) <= exposed()
            assert metrics_in(variable["definition"])
    used = {word for panel in board["panels"] for word in ("$job", "$pod") if word in str(panel)}
    assert used <= {f"${name}" for name in variables}


def test_every_query_and_every_rule_asks_for_metrics_that_there_are() -> None:
    expressions = [expression for _, _, expression in panels()] + [rule["expr"] for rule in rules()]
    asked = {name for expression in expressions for name in metrics_in(expression)}
    assert asked
    assert asked <= exposed()


def test_dashboards_show_every_metric_of_the_gateway() -> None:
    """What nobody looks at is not worth its series. Put a new metric on a dashboard, or here with those that are for a
    look by hand."""
    shown = {
        name
        for expression in [e for _, _, e in panels()] + [r["expr"] for r in rules()]
        for name in metrics_in(expression)
    }
    bases = {name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum") for name in shown}
    unseen = {name for name, _, _, _ in Metrics().described() if name not in bases}
    assert unseen <= {
        "ppd_kv_event_batches",
        "ppd_kv_event_gaps_lost",
        "ppd_table_simulated",
        "process_max_fds",
        "process_open_fds",
        "process_start_time_seconds",
        "process_virtual_memory_bytes",
    }


def test_provisioning_files_are_yaml_that_names_what_is_here() -> None:
    folder = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yml").read_text(encoding="utf-8"))["datasources"]
    assert source["type"] == "prometheus"
    (provider,) = yaml.safe_load((folder / "dashboards" / "ppd-gateway.yml").read_text(encoding="utf-8"))["providers"]
    assert provider["options"]["path"] in (DEPLOY / "grafana" / "README.md").read_text(encoding="utf-8")
