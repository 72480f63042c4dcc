"""The state file: started pods as another process finds them.

Rule of this room: this file's form is decided here and nowhere else; it appears whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadtest.vllm_cpu.errors import StateError
from loadtest.vllm_cpu.pod import Pod
from loadtest.vllm_cpu.processes import Leader
from loadtest.vllm_cpu.spec import Handover, PodSpec, Role

FORMAT = 1


def state_file(directory: Path) -> Path:
    return directory / "pods.json"


def write(directory: Path, pods: Iterable[Pod]) -> None:
    """Replace the state file."""
    text = json.dumps({"format": FORMAT, "pods": [_record(pod) for pod in pods]}, indent=2)
    target = state_file(directory)
    unfinished = target.with_suffix(".unfinished")
    unfinished.write_text(text + "\n", encoding="utf-8")
    unfinished.rename(target)


def read(directory: Path) -> list[tuple[PodSpec, Path, Leader | None]]:
    """Spec, log and processes of each pod; an empty list when there is no state file."""
    source = state_file(directory)
    if not source.is_file():
        return []
    content = json.loads(source.read_text(encoding="utf-8"))
    if content.get("format") != FORMAT:
        raise StateError(f"{source} has format {content.get('format')}, this release writes {FORMAT}")
    return [_restored(record) for record in content["pods"]]


def _record(pod: Pod) -> dict[str, Any]:
    """What people and other tools want to know comes first, what `read` needs last."""
    return {
        "name": pod.name,
        "role": pod.role,
        "url": pod.url,
        "pid": pod.pid,
        "log": str(pod.log),
        "event_endpoint": pod.spec.event_endpoint,
        "event_topic": pod.spec.event_topic,
        "replay_endpoint": pod.spec.replay_endpoint,
        "command": pod.command,
        "variables": pod.variables,
        "started": pod.leader.started if pod.leader else None,
        "spec": asdict(pod.spec),
    }


def _restored(record: dict[str, Any]) -> tuple[PodSpec, Path, Leader | None]:
    fields = record["spec"]
    arguments = tuple(fields["engine_arguments"])
    handover = Handover(fields.get("handover", Handover.NIXL))
    spec = PodSpec(**(fields | {"role": Role(fields["role"]), "engine_arguments": arguments, "handover": handover}))
    leader = Leader(record["pid"], record["started"]) if record["pid"] else None
    return spec, Path(record["log"]), leader
