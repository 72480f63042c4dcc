"""The rules and dashboards as the tests see them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))

_NAME = re.compile(r"(?<![\w:\"])(?:ppd_|gen_ai_server_|process_)\w+")


def rules() -> list[dict[str, Any]]:
    """Every rule of every group."""
    files = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(RULES.glob("*.yml"))]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    """The alerting rules by name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def boards() -> dict[str, dict[str, Any]]:
    """The dashboards by their files' names."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in DASHBOARDS}


def panels() -> Iterator[tuple[str, str, str]]:
    """(dashboard, panel, expression) of every query, its variables filled in."""
    for name, board in boards().items():
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield name, panel["title"], filled(target["expr"])


def filled(expression: str) -> str:
    """As Grafana sends it when everything is chosen and a minute is looked at."""
    return expression.replace("$__rate_interval", "1m").replace("$job", ".*").replace("$pod", ".*")


def metrics_in(expression: str) -> set[str]:
    """The gateway's metrics that an expression asks for."""
    return set(_NAME.findall(expression))
