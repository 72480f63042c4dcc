"""Writes the dashboards beside it: `python deploy/grafana/build.py`.

Rule of this room: a dashboard is rows of panels, a panel a title and its queries; ids, positions and everything else
that Grafana wants is made here. Edit `boards.py`, not the JSON: a test compares them.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SCHEMA_VERSION = 39
WIDTH = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Panel:
    """kind: timeseries, stat, table, heatmap. queries: (expression, legend). unit: as Grafana calls it.

    width: of 24; 0 for an equal share of what the row has left. stacked: areas on top of each other.
    """

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    meaning: str = ""
    width: int = 0
    stacked: bool = False
    top: float | None = None


@dataclass(frozen=True)
class Row:
    """Panels side by side."""

    title: str
    panels: tuple[Panel, ...]
    height: int = 8


@dataclass(frozen=True)
class Variable:
    """A choice at the top: the values of a label of a metric."""

    name: str
    metric: str
    label: str


@dataclass(frozen=True)
class Board:
    """One dashboard; `uid` is its file's name, too."""

    uid: str
    title: str
    meaning: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = field(default=())


def panel(of: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    """One panel's JSON."""
    made: dict[str, Any] = {
        "id": number,
        "type": of.kind,
        "title": of.title,
        "description": of.meaning,
        "datasource": DATASOURCE,
        "gridPos": place,
        "targets": [_target(of, at, query, legend) for at, (query, legend) in enumerate(of.queries)],
        "fieldConfig": {"defaults": _defaults(of), "overrides": []},
        "options": _options(of),
    }
    if of.kind == "table":
        made["transformations"] = [{"id": "merge", "options": {}}]
    return made


def _target(of: Panel, at: int, query: str, legend: str) -> dict[str, Any]:
    target: dict[str, Any] = {
        "refId": chr(ord("A") + at),
        "datasource": DATASOURCE,
        "expr": query,
        "legendFormat": legend,
        "editorMode": "code",
        "range": of.kind in ("timeseries", "heatmap"),
        "instant": of.kind not in ("timeseries", "heatmap"),
    }
    if of.kind in ("table", "heatmap"):
        target["format"] = of.kind
    return target


def _defaults(of: Panel) -> dict[str, Any]:
    made: dict[str, Any] = {"unit": of.unit, "color": {"mode": "palette-classic"}}
    if of.kind == "timeseries":
        made["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 30 if of.stacked else 5,
            "showPoints": "never",
            "stacking": {"mode": "normal" if of.stacked else "none", "group": "A"},
        }
        made["min"] = 0
    if of.kind == "stat":
        made["color"] = {"mode": "thresholds"}
        steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
        if of.top is not None:
            steps.append({"color": "red", "value": of.top})
        made["thresholds"] = {"mode": "absolute", "steps": steps}
    return made


def _options(of: Panel) -> dict[str, Any]:
    if of.kind == "timeseries":
        return {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if of.kind == "stat":
        return {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "value",
            "graphMode": "none",
            "textMode": "auto",
        }
    if of.kind == "heatmap":
        return {"calculate": False, "color": {"mode": "scheme", "scheme": "Oranges"}, "yAxis": {"unit": of.unit}}
    return {"showHeader": True}


def dashboard(board: Board) -> dict[str, Any]:
    """A dashboard's JSON model."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row in board.rows:
        place = {"h": 1, "w": WIDTH, "x": 0, "y": y}
        heading = {"id": len(panels) + 1, "type": "row", "title": row.title, "collapsed": False, "panels": []}
        panels.append({**heading, "gridPos": place})
        y += 1
        x = 0
        left = WIDTH - sum(each.width for each in row.panels)
        shares = sum(each.width == 0 for each in row.panels)
        for each in row.panels:
            width = each.width or left // shares
            panels.append(panel(each, len(panels) + 1, {"h": row.height, "w": width, "x": x, "y": y}))
            x += width
        y += row.height
    return {
        "uid": board.uid,
        "title": board.title,
        "description": board.meaning,
        "tags": ["ppd-gateway"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [
            {
                "type": "dashboards",
                "title": "ppd-gateway",
                "tags": ["ppd-gateway"],
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "templating": {
            "list": [_datasource(), *map(_variable, (Variable("job", "ppd_build_info", "job"), *board.variables))]
        },
        "panels": panels,
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}}


def _variable(variable: Variable) -> dict[str, Any]:
    scope = "" if variable.name == "job" else '{job=~"$job"}'
    query = f"label_values({variable.metric}{scope}, {variable.label})"
    return {
        "name": variable.name,
        "label": variable.name.capitalize(),
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": variable.name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def render(board: Board) -> str:
    """The file's text."""
    return json.dumps(dashboard(board), indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Write every dashboard."""
    sys.path.insert(0, str(FOLDER.parent.parent))
    from deploy.grafana.boards import BOARDS

    for board in BOARDS:
        (FOLDER / "dashboards" / f"{board.uid}.json").write_text(render(board), encoding="utf-8")


if __name__ == "__main__":
    main()
