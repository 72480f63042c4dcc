"""What a Kubernetes pod object says of the pod."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.core.pods import Role
from gateway.core.settling import Found, Standing
from gateway.ops.discovery.kube_pods import KubePod, Unfit, found_of
from tests.net.fake_kubernetes import kube_pod

LABELS = ("ppd.role", "llm-d.ai/role")


def found(pod: dict[str, Any], port: str | None = None) -> Found | None:
    return found_of(msgspec.convert(pod, KubePod), LABELS, port)


def with_ports(*ports: tuple[str | None, int], **more: Any) -> dict[str, Any]:
    """A pod without the annotation."""
    pod = kube_pod("a", 1, annotations=None, **more)
    named = [{"containerPort": number} | ({"name": name} if name else {}) for name, number in ports]
    pod["spec"]["containers"] = [{"name": "vllm", "ports": named}, {"name": "sidecar"}]
    return pod


@pytest.mark.parametrize(
    ("ports", "wanted", "url"),
    [
        ([(None, 8200)], None, "http://127.0.0.1:8200"),
        ([("metrics", 9000), ("http", 8100)], None, "http://127.0.0.1:8100"),
        ([("a", 1), ("b", 2)], None, "http://127.0.0.1:8000"),
        ([], None, "http://127.0.0.1:8000"),
        ([("a", 1), ("b", 2)], "b", "http://127.0.0.1:2"),
        ([("a", 1)], "8080", "http://127.0.0.1:8080"),
        ([(None, 80)], None, "http://127.0.0.1"),
    ],
)
def test_the_port(ports: list[tuple[str | None, int]], wanted: str | None, url: str) -> None:
    pod = found(with_ports(*ports), wanted)
    assert pod is not None
    assert pod.url == url


def test_the_annotation_wins_over_what_is_configured() -> None:
    pod = found(kube_pod("a", 8300), "8080")
    assert pod is not None
    assert pod.url == "http://127.0.0.1:8300"


@pytest.mark.parametrize("port", ["metrics", "0", "65536"])
def test_a_port_that_it_does_not_have_is_no_port(port: str) -> None:
    with pytest.raises(Unfit, match=f"it has no port '{port}'"):
        found(with_ports(("http", 8000)), port)


@pytest.mark.parametrize(
    ("label", "value", "role"),
    [
        ("ppd.role", "prefill", Role.PREFILL),
        ("ppd.role", "replica", Role.REPLICA),
        ("llm-d.ai/role", "decode", Role.DECODE),
        ("llm-d.ai/role", "both", Role.REPLICA),
        ("llm-d.ai/role", "prefill-decode", Role.REPLICA),
    ],
)
def test_the_role(label: str, value: str, role: Role) -> None:
    pod = found(kube_pod("a", 1, value, label=label))
    assert pod is not None
    assert pod.role is role


def test_our_own_label_wins() -> None:
    pod = kube_pod("a", 1, "decode")
    pod["metadata"]["labels"]["llm-d.ai/role"] = "prefill"
    assert found(pod) == Found("http://127.0.0.1:1", Role.DECODE)


def test_without_a_role_it_is_unfit() -> None:
    with pytest.raises(Unfit, match=r"it has no label ppd\.role or llm-d\.ai/role"):
        found(kube_pod("a", 1, label="other"))


def test_standing() -> None:
    leaving = kube_pod("a", 1, deletionTimestamp="2026-11-29T12:00:00Z")
    for pod, standing in (
        (kube_pod("a", 1), Standing.READY),
        (kube_pod("a", 1, ready=False), Standing.UNREADY),
        (leaving, Standing.LEAVING),
    ):
        assert found(pod) == Found("http://127.0.0.1:1", Role.DECODE, standing)


def test_no_conditions_is_not_ready() -> None:
    pod = kube_pod("a", 1)
    pod["status"] = {"phase": "Pending", "podIP": "10.0.0.7"}
    assert found(pod) == Found("http://10.0.0.7:1", Role.DECODE, Standing.UNREADY)


def test_without_an_address_or_after_its_end_it_is_no_pod() -> None:
    pending, failed = kube_pod("a", 1, ip=""), kube_pod("a", 1)
    failed["status"]["phase"] = "Failed"
    assert found(pending) is None
    assert found(failed) is None
    del pending["status"]
    assert found(pending) is None


def test_an_ipv6_address_is_in_brackets() -> None:
    pod = found(kube_pod("a", 8000, ip="fd00::7"))
    assert pod is not None
    assert pod.url == "http://[fd00::7]:8000"
