"""The examples of docs/discovery.md are taken as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.core.pods import Role
from gateway.core.settling import Found, Standing
from gateway.ops.config import load
from gateway.ops.discovery.files import read_pods

PAGE = Path(__file__).parents[2] / "docs" / "discovery.md"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
TOML = [text for kind, text in BLOCKS if kind == "toml"]


@pytest.mark.parametrize("text", TOML)
def test_a_configuration(text: str, tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(text, encoding="utf-8")
    namespace = {"PPD_KUBERNETES_NAMESPACE": "inference"}
    config = load(path, {"KUBERNETES_SERVICE_HOST": "10.96.0.1", **namespace}, {})
    assert config.discovery.any


def test_there_are_two_of_them() -> None:
    assert len(TOML) == 2


def test_a_file_of_pods(tmp_path: Path) -> None:
    [text] = [text for kind, text in BLOCKS if kind == "json"]
    path = tmp_path / "pods.json"
    path.write_text(text, encoding="utf-8")
    assert read_pods(path) == [
        Found("http://10.0.0.5:8000", Role.PREFILL),
        Found("http://10.0.0.6:8000", Role.DECODE),
        Found("http://10.0.0.7:8000", Role.DECODE, Standing.UNREADY),
    ]


def test_the_rights_are_those_that_the_source_uses() -> None:
    [text] = [text for kind, text in BLOCKS if kind == "yaml"]
    assert re.findall(r"verbs: (.*)", text) == ['["list", "watch"]']
    assert re.findall(r"resources: (.*)", text) == ['["pods"]']
    assert "ClusterRole" not in text
