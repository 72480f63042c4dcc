"""`ppd-gateway doctor` before real pods: it finds nothing wrong with good ones, and the fault of a bad one."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ops.config import load
from gateway.ops.doctor.examine import examine
from gateway.ops.doctor.findings import Finding, Level
from gateway.ops.doctor.options import Options
from tests.vllm.support import Client, VllmCluster, lease_of, until_empty

pytestmark = pytest.mark.vllm


async def found(cluster: VllmCluster, **settings: Any) -> list[Finding]:
    given = {
        "prefill": [cluster.prefill.url],
        "decode": [pod.url for pod in cluster.decode],
        "policy": "local",
        **settings,
    }
    return await examine(load(None, {}, given), Options(limit_s=15.0))


def troubles(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level is not Level.OK]


async def test_good_pods_are_found_good_and_nothing_stays_behind(vllm_cluster: VllmCluster, client: Client) -> None:
    findings = await found(vllm_cluster, readback="true")
    assert troubles(findings) == []
    seen = {(finding.check, finding.about): finding.seen for finding in findings}
    prefill = vllm_cluster.prefill.url
    for pod in vllm_cluster.decode:
        assert seen["hand-over", f"{prefill} > {pod.url}"].startswith("nixl, ")
        assert seen["version", pod.url] == "vLLM 0.32.0"
        assert seen["kv events", pod.url].startswith("heard at ")
        assert seen["kv events replay", pod.url].startswith("answers at ")
    (read,) = [finding for finding in findings if finding.check == "readback"]
    assert read.about.endswith(f" > {prefill}")
    assert int(read.seen.split()[0]) >= 64
    for pod in (vllm_cluster.prefill, *vllm_cluster.decode):
        await until_empty(client, pod, lease_of(vllm_cluster.prefill) + 5)


async def test_a_pod_without_a_connector_is_told_which_flag_it_needs(vllm_cluster: VllmCluster) -> None:
    plain = vllm_cluster.plain.url
    as_decode = troubles(await found(vllm_cluster, decode=[plain]))
    assert [(f.check, f.about) for f in as_decode if f.level is Level.FAIL] == [
        ("hand-over", f"{vllm_cluster.prefill.url} > {plain}")
    ]
    assert as_decode[-1].change is not None
    assert '"kv_role":"kv_consumer"' in as_decode[-1].change
    as_prefill = troubles(await found(vllm_cluster, prefill=[plain], decode=[vllm_cluster.decode[0].url]))
    (fault,) = [f for f in as_prefill if f.level is Level.FAIL]
    assert fault.check == "hand-over"
    assert '"kv_role":"kv_producer"' in (fault.change or "")
