"""The printed pages are what the code says today."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.ops.metrics import Metrics
from gateway.ops.reference import PAGES
from gateway.ops.settings import SETTINGS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_the_page_in_docs_is_the_one_the_code_prints(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "run `make docs`"


def test_every_setting_and_every_metric_is_on_its_page() -> None:
    configuration = PAGES["configuration.md"]()
    assert all(
        f"`{setting.flag} " in configuration and f"`{setting.variable}`" in configuration for setting in SETTINGS
    )
    exposed = {name for name, _, _, _ in Metrics().described()}
    assert {"ppd_requests_in_flight", "ppd_requests_total", "process_resident_memory_bytes"} <= exposed
    assert all(f"`{name}`" in PAGES["metrics.md"]() for name in exposed)


def test_every_command_is_on_its_page_with_its_own_flags() -> None:
    page = PAGES["commands.md"]()
    for command in ("serve", "config check", "canary set", "doctor", "lut build", "simulate", "loadtest", "completion"):
        assert f"## `ppd-gateway {command}`" in page
    assert "| `--against URL` |" in page
    assert "--worker-folder" not in page
    assert "`--canary-percent" not in page
