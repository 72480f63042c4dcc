"""Where pods are looked for, as the settings say it; what does not fit is one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.core.pods import Role
from gateway.core.settling import SettlingRules
from gateway.ops.config import Config, load
from gateway.ops.discovery import plan as plans
from gateway.ops.discovery.plan import DiscoveryPlan, DnsName, KubernetesPlan
from gateway.ops.layers import ConfigError
from gateway.ops.settings import BY_KEY

IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def configured(environment: dict[str, str] | None = None, **flags: Any) -> Config:
    return load(None, environment or {}, {key.replace("__", "."): value for key, value in flags.items()})


def complaint(environment: dict[str, str] | None = None, **flags: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        configured(environment, **flags)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_any_of_it_there_is_nothing_to_look_for() -> None:
    config = configured(decode=["http://d:1"])
    assert config.discovery == DiscoveryPlan(), "the table's defaults are those of the code"
    assert not config.discovery.any


def test_names_stand_among_the_pods() -> None:
    config = configured(
        prefill=["dns+http://Prefill.ns.svc:8100/"], decode=["http://d:1", "srv+http://_vllm._tcp.decode.ns"]
    )
    assert config.pods == ((Role.DECODE, "http://d:1"),)
    prefill, decode = config.discovery.names
    assert prefill == DnsName(Role.PREFILL, "dns+http://prefill.ns.svc:8100")
    assert (prefill.kind, prefill.scheme, prefill.host, prefill.port) == ("dns", "http", "prefill.ns.svc", 8100)
    assert (decode.kind, decode.host) == ("srv", "_vllm._tcp.decode.ns")
    assert DnsName(Role.DECODE, "dns+https://d").port == 443
    assert config.warnings == (), "prefill pods may come"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("srv+http://name:80", "'srv+http://name:80' must have no port: SRV records say it"),
        ("dns+http://10.0.0.1:80", "'dns+http://10.0.0.1:80' must hold a name, not an address"),
        ("dns+http://[fd00::1]:80", "must hold a name, not an address"),
        ("dns+ftp://name", "is not a URL like"),
        ("tcp+http://name", "is not a URL like"),
        ("dns+http://name/path", "must end after host and port"),
    ],
)
def test_a_name_that_is_none(value: str, reason: str) -> None:
    line = complaint(decode=[value])
    assert line.startswith("flag --decode: decode: ")
    assert reason in line


def test_a_name_has_one_role() -> None:
    line = complaint(prefill=["dns+http://pods:1"], decode=["dns+http://pods:1"])
    assert line == "flag --decode: decode: dns+http://pods:1 is already named as prefill"


def test_srv_records_need_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "find_spec", lambda name: None)
    line = complaint(decode=["srv+http://name"])
    assert line == "flag --decode: decode: needs dnspython: pip install 'ppd-gateway[dns]'"
    line = complaint(decode=["dns+http://name"], discovery__nameserver="10.0.0.10")
    assert line.startswith("flag --discovery-nameserver: discovery.nameserver: needs dnspython")
    assert configured(decode=["dns+http://name"]).discovery.names[0].host == "name"


def test_a_file_and_the_rules(tmp_path: Path) -> None:
    config = configured(
        discovery__file=str(tmp_path / "pods.json"),
        discovery__hold_s=3,
        discovery__max_loss="0.2",
        discovery__interval_s=7,
    )
    plan = config.discovery
    assert (plan.file, plan.interval_s) == (tmp_path / "pods.json", 7.0)
    assert plan.rules == SettlingRules(3.0, 0.2)


def test_in_a_cluster_the_selector_is_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plans, "SERVICE_ACCOUNT", tmp_path)
    (tmp_path / "namespace").write_text("inference", encoding="utf-8")
    plan = configured(IN_CLUSTER, kubernetes__selector="app=vllm,tier!=test").discovery.kubernetes
    assert plan == KubernetesPlan(
        selector="app=vllm,tier!=test",
        namespace="inference",
        api="https://10.96.0.1:443",
        token_file=tmp_path / "token",
        ca_file=tmp_path / "ca.crt",
    )
    six = configured({"KUBERNETES_SERVICE_HOST": "fd00::1"}, kubernetes__selector="a=b").discovery.kubernetes
    assert six is not None
    assert six.api == "https://[fd00::1]:443"


def test_outside_a_cluster_the_rest_must_be_said() -> None:
    line = complaint(kubernetes__selector="a=b")
    assert line.startswith("flag --kubernetes-selector: kubernetes.selector: this is no pod of a cluster")
    line = complaint(kubernetes__selector="a=b", kubernetes__api="http://127.0.0.1:8001")
    assert "set kubernetes.namespace too" in line
    plan = configured(
        kubernetes__selector="a=b",
        kubernetes__api="http://127.0.0.1:8001",
        kubernetes__namespace="ns",
        kubernetes__role_labels=["example.com/role"],
        kubernetes__port="8000",
        kubernetes__token_file="/token",
        kubernetes__ca_file="/ca",
        kubernetes__resync_s="60",
    ).discovery.kubernetes
    assert plan == KubernetesPlan(
        "a=b", "ns", "http://127.0.0.1:8001", ("example.com/role",), "8000", Path("/token"), Path("/ca"), 60.0
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("discovery.nameserver", "dns.google"),
        ("discovery.nameserver", "10.0.0.1:0"),
        ("discovery.nameserver", "10.0.0.1:x"),
        ("discovery.max_loss", "1.5"),
        ("kubernetes.namespace", "../etc"),
        ("kubernetes.namespace", "a/b/c"),
        ("kubernetes.role_labels", "a b"),
        ("kubernetes.port", "70000"),
        ("kubernetes.port", "a b"),
        ("kubernetes.port", True),
    ],
)
def test_what_is_no_such_thing(key: str, value: object) -> None:
    with pytest.raises(ValueError):
        BY_KEY[key].check(value)


@pytest.mark.parametrize("value", ["10.0.0.10", "10.0.0.10:5353", "fd00::10", "[fd00::10]:53"])
def test_a_nameserver(value: str) -> None:
    assert BY_KEY["discovery.nameserver"].check(value) == value


def test_a_port_may_be_a_number_of_toml() -> None:
    assert BY_KEY["kubernetes.port"].check(8000) == "8000"


def test_events_and_bootstraps_may_be_of_pods_to_come() -> None:
    config = configured(decode=["dns+http://d:1"], kv_event_endpoints=["http://10.0.0.1:1=tcp://10.0.0.1:5557"])
    assert config.kv_event_endpoints == (("http://10.0.0.1:1", "tcp://10.0.0.1:5557", None),)
