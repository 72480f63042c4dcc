"""Reference pages printed from the code, so that they cannot drift: `python -m gateway.ops.reference docs`."""

from __future__ import annotations

import sys
from pathlib import Path

from gateway.core.reasons import MEANINGS
from gateway.ops import commands_page
from gateway.ops.cli import _parser
from gateway.ops.doctor import versions
from gateway.ops.metrics import Metrics
from gateway.ops.metrics.requests import MAX_MODELS
from gateway.ops.reload import AT_RUN_TIME
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
        "## At run time",
        "",
        "SIGHUP changes these in a running gateway; all others count at the next start:",
        ", ".join(f"`{row.key}`" for row in SETTINGS if row.key in AT_RUN_TIME) + ".",
        "",
        "## A file",
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
    """docs/metrics.md: every metric with its labels, the buckets, the reason classes."""
    found = Metrics()
    lines = [
        "# Metrics",
        "",
        "Printed from `gateway/ops/metrics` by `make docs`; do not edit. Served at `/metrics`; with `--workers` every "
        "sample has the label `worker` (and `ppd_worker_up` says which workers answered).",
        "",
        "Dashboards and rules made of these are in [deploy/](../deploy/grafana/README.md), what to do when an alert "
        "fires in [troubleshooting](troubleshooting.md).",
        "",
        "| metric | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    for name, kind, labels, meaning in found.described():
        words = meaning.replace("|", "\\|")
        lines.append(f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {words} |")
    lines += [
        "",
        "## Labels",
        "",
        "- `route`: `pd`, `local`, `readback`, `replica` as carried out in the end; `none` where it never came to one.",
        "- `turn`: `1`, `2+`, or `none` for what is no conversation.",
        "- `arm`: `canary` (routed by the policy) or `baseline` (as a plain proxy would); without a canary all is "
        "`canary`.",
        f"- `gen_ai_request_model`: names that the answering pod serves, {MAX_MODELS} at most; the rest is `other`.",
        "- `pod`: its URL. A pod that leaves takes its series with it.",
        "",
        "No label holds a conversation, a user, a key or a request id.",
        "",
        "## Reason classes",
        "",
        "`reason` of `ppd_decisions_total`; the access line and `x-ppd-reason` have the whole sentence.",
        "",
        "| reason | what decided |",
        "|---|---|",
    ]
    lines += [f"| `{reason.value}` | {meaning} |" for reason, meaning in MEANINGS.items()]
    lines += ["", "## Buckets", "", "| histogram | upper bounds |", "|---|---|"]
    for name, bounds in found.bounds().items():
        lines.append(f"| `{name}` | {', '.join(f'{bound:g}' for bound in bounds)} |")
    lines += [
        "",
        "The bounds that OpenTelemetry recommends for `gen_ai.server.request.duration`, `.time_to_first_token` and "
        "`.time_per_output_token` are all among them. Names are what OpenTelemetry's translation to Prometheus makes "
        "of its own; the attributes become the labels `gen_ai_operation_name`, `gen_ai_provider_name` (`vllm`), "
        "`gen_ai_request_model` and `error_type`. `gen_ai.client.token.usage` is the client's to report; "
        "`ppd_request_tokens` has its bounds.",
    ]
    return "\n".join(lines) + "\n"


def commands() -> str:
    """docs/commands.md: every command."""
    return commands_page.page(_parser)


PAGES = {
    "commands.md": commands,
    "configuration.md": configuration,
    "metrics.md": metrics,
    "prefill-leg.md": contract.render,
    "compatibility.md": versions.page,
}


def main() -> None:
    """Write every page into the folder given."""
    folder = Path(sys.argv[1])
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
