"""Which vLLM releases and connectors this gateway was run with, and how: printed as docs/compatibility.md.

Rule of this room: a row is here only when the tests named in it run on real pods of that release.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_RELEASE = re.compile(r"(\d+)\.(\d+)")


class Tried(NamedTuple):
    """One row. routes: what was routed there. tests: files under tests/vllm."""

    release: str
    connector: str
    routes: str
    tests: tuple[str, ...]
    note: str


TRIED = (
    Tried(
        "0.32.0",
        "NixlConnector",
        "pd, local, readback",
        ("test_whole", "test_parity", "test_features", "test_failures", "test_prefill_leg", "test_readback"),
        "readback with `bidirectional_kv_xfer` on the prefill pods",
    ),
    Tried(
        "0.32.0",
        "NixlPushConnector",
        "pd, local",
        ("test_handover_ways",),
        "no readback: the connector refuses `bidirectional_kv_xfer`",
    ),
    Tried(
        "0.32.0",
        "MooncakeConnector",
        "pd, local",
        ("test_handover_ways",),
        "mooncake-transfer-engine over TCP",
    ),
    Tried("0.32.0", "none", "replica", ("test_replica",), "pods that serve conversations whole"),
)


def release_of(version: str) -> tuple[int, int] | None:
    """Major and minor of a version as a pod tells it; None for what is none."""
    found = _RELEASE.match(version)
    return None if found is None else (int(found[1]), int(found[2]))


def tried(version: str) -> bool:
    """Whether that release was run with this gateway; a patch level more or less is the same release."""
    return release_of(version) in {release_of(row.release) for row in TRIED}


def page() -> str:
    """docs/compatibility.md."""
    lines = [
        "# Compatibility",
        "",
        "Printed from `gateway/ops/doctor/versions.py` by `make docs`; do not edit.",
        "",
        "What was run on real vLLM pods, and with which tests (`tests/vllm`, all on CPU, one DP and one TP rank). "
        "Other releases are not refused: `ppd-gateway doctor` says that they were not tried, and tries the hand-over.",
        "",
        "| vLLM | connector | routes | tests | remarks |",
        "|---|---|---|---|---|",
    ]
    for row in TRIED:
        tests = ", ".join(f"`{name}`" for name in row.tests)
        lines.append(f"| {row.release} | {row.connector} | {row.routes} | {tests} | {row.note} |")
    lines += [
        "",
        "Not run for real: GPUs, RDMA, more than one DP or TP rank, releases other than the above, other connectors "
        "(LMCache, P2pNccl, Moriio). What each way of hand-over needs is in [handover.md](handover.md).",
    ]
    return "\n".join(lines) + "\n"
