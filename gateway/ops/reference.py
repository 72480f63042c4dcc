"""Reference pages printed from the code, so that they cannot drift: `python -m gateway.ops.reference docs`."""

from __future__ import annotations

import sys
from pathlib import Path

from gateway.ops.metrics import Metrics
from gateway.ops.settings import SETTINGS
from gateway.wire import contract


def configuration() -> str:
    """docs/configuration.md: every setting with its three names."""
    lines = [
        "# Configuration",
        "",
        "Printed from `gateway/ops/settings.py` by `make docs`; do not edit.",
        "",
        "`ppd-gateway serve` reads flags, `PPD_…` environment variables and one TOML file (`--config FILE`). Flags "
        "win over variables, variables over the file. A key with a dot lives in a TOML table: `timeouts.connect_s` "
        "is `connect_s` in `[timeouts]`. Lists are TOML lists, repeated flags, or comma-separated variables. "
        "`ppd-gateway config check FILE` says whether a file is fit to serve without starting anything; what is "
        "wrong is said in one line with the key and the place, and the exit status is 2.",
        "",
        "| key | flag | variable | default | meaning |",
        "|---|---|---|---|---|",
    ]
    for row in SETTINGS:
        default = "" if row.default == () else f"`{row.default}`"
        lines.append(f"| `{row.key}` | `{row.flag} {row.metavar}` | `{row.variable}` | {default} | {row.help} |")
    lines += [
        "",
        "```toml",
        'prefill = ["http://p0:8100"]',
        'decode = ["http://d0:8200", "http://d1:8200"]',
        'policy = "local"',
        'host = "0.0.0.0"',
        'api_keys = "/etc/ppd/keys"',
        "",
        "[timeouts]",
        "prefill_s = 120",
        "```",
    ]
    return "\n".join(lines) + "\n"


def metrics() -> str:
    """docs/metrics.md: every metric with its labels."""
    lines = [
        "# Metrics",
        "",
        "Printed from `gateway/ops/metrics.py` by `make docs`; do not edit. Served at `/metrics`.",
        "",
        "| metric | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    for name, kind, labels, meaning in Metrics().described():
        lines.append(f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {meaning} |")
    return "\n".join(lines) + "\n"


PAGES = {"configuration.md": configuration, "metrics.md": metrics, "prefill-leg.md": contract.render}


def main() -> None:
    """Write every page into the folder given."""
    folder = Path(sys.argv[1])
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
