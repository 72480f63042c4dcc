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
    exposed = {
        sample.name for family in Metrics().registry.collect() for sample in family.samples if family.type == "gauge"
    }
    assert "ppd_requests_in_flight" in exposed
    assert all(f"`{name}`" in PAGES["metrics.md"]() for name in exposed)
