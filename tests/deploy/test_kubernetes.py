"""The manifests of deploy/k8s: rendered, held against Kubernetes' schemas, and against each other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from gateway.core.keys import hash_of
from gateway.ops.cli import main
from gateway.ops.config import Config, load
from gateway.ops.settings import SETTINGS
from tests.deploy.kustomize import Manifest, by_kubectl, containers, pod_spec, render

ROOT = Path(__file__).parents[2]
K8S = ROOT / "deploy" / "k8s"
GATEWAYS = ("base", "overlays/single", "overlays/canary", "overlays/ha")
ALL = (*GATEWAYS, "vllm")
RELEASES = ("1.31", "1.37")
"""The oldest that `lifecycle.preStop.sleep` can be relied on, and the newest that the package knows."""

SECRETS = re.compile(r"create secret generic (\S+) (.*)")

each = pytest.mark.parametrize("name", ALL)
each_gateway = pytest.mark.parametrize("name", GATEWAYS)


def of(name: str, kind: str, called: str | None = None) -> list[Manifest]:
    found = [m for m in render(K8S / name) if m["kind"] == kind]
    return [m for m in found if called is None or m["metadata"]["name"] == called]


def gateway_of(name: str) -> Manifest:
    (deployment,) = of(name, "Deployment", "ppd-gateway")
    return deployment


def selects(selector: dict[str, str], manifest: Manifest) -> bool:
    return selector.items() <= manifest["spec"]["template"]["metadata"]["labels"].items()


@each
@pytest.mark.parametrize("release", RELEASES)
def test_every_manifest_is_valid_against_the_schema_of_kubernetes(name: str, release: str) -> None:
    manifests = render(K8S / name)
    assert manifests
    for manifest in manifests:
        kubernetes_validate.validate(manifest, release, strict=True)


def test_a_manifest_that_is_not_valid_would_be_seen() -> None:
    broken = gateway_of("base")
    containers(broken)[0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, RELEASES[1], strict=True)


_HASH = re.compile(r"(ppd-gateway-config)-[0-9a-z]{10}\b")


def plain(manifest: Any) -> Any:
    return yaml.safe_load(_HASH.sub(r"\1", yaml.safe_dump(manifest)))


@each
def test_kubectl_renders_the_same(name: str) -> None:
    found = by_kubectl(K8S / name)
    if found is None:
        pytest.skip("KUSTOMIZE NOT COMPARED: no kubectl on PATH")
    key = lambda m: (m["kind"], m["metadata"]["name"])  # noqa: E731
    assert sorted(map(plain, found), key=key) == sorted(render(K8S / name), key=key)


@each
def test_the_pods_are_restricted(name: str) -> None:
    for manifest in render(K8S / name):
        for container in containers(manifest):
            security, of_pod = container["securityContext"], pod_spec(manifest)["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}
            assert {"requests", "limits"} <= container["resources"].keys()
            if container["name"] != "vllm":  # vLLM's own image runs as root and compiles into its home
                assert of_pod["runAsNonRoot"] is True
                assert security["readOnlyRootFilesystem"] is True


@each
def test_volumes_ports_and_selectors_name_what_is_there(name: str) -> None:
    manifests = render(K8S / name)
    workloads = [m for m in manifests if pod_spec(m)]
    kinds = {(m["kind"], m["metadata"]["name"]) for m in manifests}
    for manifest in workloads:
        assert selects(manifest["spec"]["selector"]["matchLabels"], manifest)
        volumes = {volume["name"]: volume for volume in pod_spec(manifest)["volumes"]}
        for container in containers(manifest):
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
            ports = {port["name"] for port in container["ports"]}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                for action in container.get(probe, {}).values():
                    assert not isinstance(action, dict) or action["port"] in ports
        for volume in volumes.values():
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in kinds
            if "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in kinds
        account = pod_spec(manifest).get("serviceAccountName")
        assert account is None or ("ServiceAccount", account) in kinds
    for service in (m for m in manifests if m["kind"] == "Service"):
        (target,) = [m for m in workloads if selects(service["spec"]["selector"], m)]
        ports = {port["name"] for container in containers(target) for port in container["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for budget in (m for m in manifests if m["kind"] == "PodDisruptionBudget"):
        assert [m for m in workloads if selects(budget["spec"]["selector"]["matchLabels"], m)]
    for scaler in (m for m in manifests if m["kind"] == "HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        assert (target["kind"], target["name"]) in kinds


@each
def test_what_a_network_policy_lets_in_is_listened_to(name: str) -> None:
    manifests = render(K8S / name)
    for policy in (m for m in manifests if m["kind"] == "NetworkPolicy"):
        meant = [
            m for m in manifests if pod_spec(m) and selects(policy["spec"]["podSelector"].get("matchLabels", {}), m)
        ]
        assert meant
        ports = {port["name"] for m in meant for container in containers(m) for port in container["ports"]}
        let_in = [port["port"] for rule in policy["spec"]["ingress"] for port in rule.get("ports", ())]
        assert set(let_in) <= ports


def test_the_gateway_may_reach_every_port_of_vllm_that_it_needs() -> None:
    (policy,) = of("base", "NetworkPolicy")
    for role in ("vllm-prefill", "vllm-decode"):
        (pods,) = of("vllm", "Deployment", role)
        rules = [
            rule
            for rule in policy["spec"]["egress"]
            if any(selects(to["podSelector"]["matchLabels"], pods) for to in rule.get("to", ()))
        ]
        allowed = {port["port"] for rule in rules for port in rule["ports"]}
        (container,) = containers(pods)
        assert allowed == {port["containerPort"] for port in container["ports"] if port["name"] != "nixl"}


def test_the_gateway_finds_the_pods_of_the_example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, config = configuration("base", monkeypatch, tmp_path)
    plan = config.discovery.kubernetes
    assert plan is not None
    key, _, value = plan.selector.partition("=")
    for role, name in (("prefill", "vllm-prefill"), ("decode", "vllm-decode")):
        (pods,) = of("vllm", "Deployment", name)
        assert selects({key: value, plan.role_labels[0]: role}, pods)
        (container,) = containers(pods)
        assert plan.port in {port["name"] for port in container["ports"]}


@each_gateway
def test_the_gateways_role_is_the_one_that_discovery_needs(name: str) -> None:
    (role,) = of(name, "Role")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
    (binding,) = of(name, "RoleBinding")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert [s["name"] for s in binding["subjects"]] == [pod_spec(gateway_of(name))["serviceAccountName"]]
    assert not of(name, "ClusterRole")
    text = (ROOT / "docs" / "discovery.md").read_text(encoding="utf-8")
    assert 'resources: ["pods"]\n    verbs: ["list", "watch"]' in text


def configuration(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> tuple[str, Config]:
    """The file of a rendering, with its secrets and its state in that folder, and what it makes with the variables."""
    for setting in SETTINGS:
        monkeypatch.delenv(setting.variable, raising=False)
    for secret, text in (("keys", f"{hash_of('a-key-of-a-client')}  tenant\n"), ("admin-token", "t" * 32)):
        (folder / secret).write_text(text, encoding="utf-8")
        (folder / secret).chmod(0o440)
    (config,) = of(name, "ConfigMap")
    text = config["data"]["gateway.toml"]
    for place in ("/etc/ppd-gateway/secrets", "/var/lib/ppd-gateway"):
        text = text.replace(place, str(folder))
    file = folder / "gateway.toml"
    file.write_text(text, encoding="utf-8")
    (container,) = containers(gateway_of(name))
    given = {one["name"]: str(one.get("value", "")) for one in container.get("env", ())}
    variables = {key: value.replace("$(VALKEY_PASSWORD)", "p") for key, value in given.items() if key[:4] == "PPD_"}
    variables |= {"PPD_KUBERNETES_NAMESPACE": "here", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    return str(file), load(file, variables, {})


@each_gateway
def test_the_configuration_is_one_that_the_gateway_takes(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, config = configuration(name, monkeypatch, tmp_path)
    assert main(["config", "check", file]) == 0, capsys.readouterr().err
    assert "warning" not in capsys.readouterr().out
    (container,) = containers(gateway_of(name))
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert config.admin is not None
    assert ports == {"http": config.port, "admin": config.admin.port}
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/etc/ppd-gateway/config", "/etc/ppd-gateway/secrets", "/var/lib/ppd-gateway"} <= mounted
    assert container["args"] == ["serve", "--config", "/etc/ppd-gateway/config/gateway.toml"]
    assert pod_spec(gateway_of(name))["enableServiceLinks"] is False, "Services named ppd-… would set PPD_… variables"
    grace_s = pod_spec(gateway_of(name))["terminationGracePeriodSeconds"]
    slept_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert grace_s >= slept_s + config.drain_timeout_s + 10


def test_each_overlay_is_what_its_name_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, canary = configuration("overlays/canary", monkeypatch, tmp_path)
    assert canary.canary.percent == 20
    _, ha = configuration("overlays/ha", monkeypatch, tmp_path)
    (service,) = of("overlays/ha", "Service", "ppd-valkey")
    assert ha.state == f"redis://:p@{service['metadata']['name']}:{service['spec']['ports'][0]['port']}/0"
    assert "replicas" not in gateway_of("overlays/ha")["spec"]
    assert gateway_of("overlays/single")["spec"]["strategy"] == {"type": "Recreate"}
    state = {volume["name"]: volume for volume in pod_spec(gateway_of("overlays/single"))["volumes"]}["state"]
    assert state == {"name": "state", "persistentVolumeClaim": {"claimName": "ppd-gateway-state"}}


def test_the_autoscalers_ask_for_metrics_that_the_adapter_makes_of_ours() -> None:
    adapter = yaml.safe_load((K8S / "prometheus-adapter.yaml").read_text(encoding="utf-8"))["rules"]
    made = {"Pods": {rule["name"]["as"] for rule in adapter["custom"]}}
    made["External"] = {rule["name"]["as"] for rule in adapter["external"]}
    asked = [
        (metric["type"], metric[metric["type"].lower()]["metric"]["name"])
        for name in ("overlays/ha", "vllm")
        for scaler in of(name, "HorizontalPodAutoscaler")
        for metric in scaler["spec"]["metrics"]
        if metric["type"] != "Resource"
    ]
    assert len(asked) == 2
    assert all(metric in made[kind] for kind, metric in asked)
    documented = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    for rule in (*adapter["custom"], *adapter["external"]):
        (used,) = set(re.findall(r"\bppd_\w+", rule["seriesQuery"] + rule["metricsQuery"]))
        assert f"| `{used}` | gauge | `pod`, `role` |" in documented


def test_the_pods_of_the_example_have_the_flags_that_the_doctor_looks_for() -> None:
    for role, kind in (("prefill", "kv_producer"), ("decode", "kv_consumer")):
        (pods,) = of("vllm", "Deployment", f"vllm-{role}")
        (container,) = containers(pods)
        args = dict(arg.partition("=")[::2] for arg in container["args"])
        assert {"--enable-prefix-caching", "--enable-prompt-tokens-details", "--block-size"} <= args.keys()
        transfer, events = yaml.safe_load(args["--kv-transfer-config"]), yaml.safe_load(args["--kv-events-config"])
        assert transfer["kv_role"] == kind
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert events["endpoint"] == f"tcp://*:{ports['kv-events']}"
        assert events["replay_endpoint"] == f"tcp://*:{ports['kv-replay']}"
        assert args["--port"] == str(ports["http"])
    by_role = [of("vllm", "Deployment", f"vllm-{role}")[0] for role in ("prefill", "decode")]
    same = [{a for a in containers(m)[0]["args"] if a.startswith(("--block-size", "--max-model"))} for m in by_role]
    assert same[0] == same[1]
    assert len(same[0]) == 2
    assert containers(by_role[0])[0]["command"] == containers(by_role[1])[0]["command"]


def test_the_page_names_folders_secrets_and_labels_that_the_manifests_have() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    applied = set(re.findall(r"-k (deploy/\S+)", page))
    assert applied
    assert all((ROOT / folder / "kustomization.yaml").exists() for folder in applied)
    created = {name: set(re.findall(r"--from-(?:file|literal)=([\w-]+)", rest)) for name, rest in SECRETS.findall(page)}
    wanted: dict[str, set[str]] = {}
    for name in GATEWAYS:
        for manifest in render(K8S / name):
            for volume in pod_spec(manifest).get("volumes", ()):
                if "secret" in volume:
                    wanted.setdefault(volume["secret"]["secretName"], set())
            for container in containers(manifest):
                for variable in container.get("env", ()):
                    if "valueFrom" in variable:
                        ref = variable["valueFrom"]["secretKeyRef"]
                        wanted.setdefault(ref["name"], set()).add(ref["key"])
    (config,) = of("base", "ConfigMap")
    wanted["ppd-gateway"] |= set(re.findall(r"/etc/ppd-gateway/secrets/([\w-]+)", config["data"]["gateway.toml"]))
    assert created == wanted
    (policy,) = of("base", "NetworkPolicy")
    assert "ppd.admin: allowed" in page
    assert any(
        peer.get("namespaceSelector") == {"matchLabels": {"ppd.admin": "allowed"}}
        for rule in policy["spec"]["ingress"]
        for peer in rule.get("from", ())
    )
