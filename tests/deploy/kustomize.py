"""The part of kustomize that deploy/k8s uses, so that its manifests can be looked at where there is no kubectl.

Rule of this room: what a kustomization asks for and this does not know is an error. Where `kubectl` is on PATH a test
compares both (names of generated ConfigMaps without their hash).
"""

from __future__ import annotations

import copy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]

KNOWN = {"apiVersion", "kind", "labels", "resources", "configMapGenerator", "images", "patches"}
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "topologySpreadConstraints": "topologyKey",
}
"""How Kubernetes merges the lists of a pod's spec (`patchMergeKey` in its API types)."""


class UnknownFeature(ValueError):
    """The renderer does not know that."""


def render(folder: Path) -> list[Manifest]:
    """All manifests of a kustomization."""
    wanted = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    if unknown := wanted.keys() - KNOWN:
        raise UnknownFeature(f"{folder}: {', '.join(sorted(unknown))}")
    found: list[Manifest] = []
    for name in wanted.get("resources", ()):
        path = (folder / name).resolve()
        found += render(path) if path.is_dir() else documents(path.read_text(encoding="utf-8"))
    for made in wanted.get("configMapGenerator", ()):
        data = {file: (folder / file).read_text(encoding="utf-8") for file in made["files"]}
        found.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": made["name"]}, "data": data})
    for patch in wanted.get("patches", ()):
        found = _patched(found, folder, patch)
    for group in wanted.get("labels", ()):
        if group.keys() - {"pairs"}:
            raise UnknownFeature(f"{folder}: labels: {', '.join(group)}")
        for manifest in found:
            manifest["metadata"].setdefault("labels", {}).update(group["pairs"])
    for image in wanted.get("images", ()):
        for manifest in found:
            _image(manifest, image)
    return found


def documents(text: str) -> list[Manifest]:
    return [document for document in yaml.safe_load_all(text) if document is not None]


def by_kubectl(folder: Path) -> list[Manifest] | None:
    """The same by kubectl's kustomize; None where there is none."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        return None
    done = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


def _patched(manifests: list[Manifest], folder: Path, patch: Manifest) -> list[Manifest]:
    text = (folder / patch["path"]).read_text(encoding="utf-8") if "path" in patch else patch["patch"]
    body = yaml.safe_load(text)
    wanted = patch.get("target") or {"kind": body["kind"], "name": body["metadata"]["name"]}
    hit = [m for m in manifests if (m["kind"], m["metadata"]["name"]) == (wanted["kind"], wanted["name"])]
    if len(hit) != 1:
        raise ValueError(f"{folder}: a patch for {wanted} meets {len(hit)} manifests")
    changed = _operated(hit[0], body) if isinstance(body, list) else merged(hit[0], body)
    return [changed if manifest is hit[0] else manifest for manifest in manifests]


def merged(into: Any, patch: Any, key: str = "") -> Any:
    """A strategic merge patch."""
    if isinstance(patch, dict) and isinstance(into, dict):
        result = dict(into)
        for name, value in patch.items():
            if value is None:
                result.pop(name, None)
            else:
                result[name] = merged(result.get(name), value, name)
        return result
    if isinstance(patch, list) and isinstance(into, list) and key in MERGE_KEYS:
        by = MERGE_KEYS[key]
        old = {item[by]: item for item in into}
        patched = [merged(old.pop(item[by], {}), item) for item in patch]
        return [*patched, *old.values()]
    return merged({}, patch) if isinstance(patch, dict) else patch


def _operated(manifest: Manifest, operations: list[Manifest]) -> Manifest:
    """A JSON patch (RFC 6902), as far as it is used."""
    result = copy.deepcopy(manifest)
    for operation in operations:
        *way, last = operation["path"].lstrip("/").split("/")
        at: Any = result
        for step in way:
            at = at[int(step)] if isinstance(at, list) else at[step]
        if operation["op"] == "add" and isinstance(at, list) and last == "-":
            at.append(operation["value"])
        elif operation["op"] == "replace" and isinstance(at, dict) and last in at:
            at[last] = operation["value"]
        else:
            raise UnknownFeature(f"{operation['op']} {operation['path']}")
    return result


def _image(manifest: Manifest, image: Manifest) -> None:
    for container in containers(manifest):
        name, _, tag = container["image"].partition(":")
        if name == image["name"]:
            container["image"] = f"{image.get('newName', name)}:{image.get('newTag', tag)}"


def pod_spec(manifest: Manifest) -> Manifest:
    """The spec of the pods that a manifest makes; empty for others."""
    spec = manifest.get("spec", {}).get("template", {}).get("spec", {})
    assert isinstance(spec, dict)
    return spec


def containers(manifest: Manifest) -> list[Manifest]:
    return list(pod_spec(manifest).get("containers", ()))
