"""Lets NIXL's progress thread sleep: the one line by which the pods differ from the wheels.

Rule of this room: runs under the pods' own interpreter, as a script, standard library only; vLLM is not
touched. NIXL 1.5.1's Python agent starts its UCX progress thread with a delay of 0, which is
`poll(…, 0)` in a loop: a core per pod, idle or not (seen: three idle pods kept two cores at 100 %, now
2 % of a core each). The delay only bounds the sleep; an arriving transfer wakes the thread at once.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

DELAY_MICROSECONDS = 1000
SPINNING = "agent_config.pthrDelay = 0\n"
DELAYED = f"agent_config.pthrDelay = {DELAY_MICROSECONDS}\n"


def set_delay(source: Path) -> None:
    """Change the one line; raises `ValueError` when the file is not the one this was written for."""
    text = source.read_text(encoding="utf-8")
    if DELAYED in text:
        return
    if text.count(SPINNING) != 1:
        raise ValueError(f"{source} does not contain '{SPINNING.strip()}' exactly once")
    source.write_text(text.replace(SPINNING, DELAYED), encoding="utf-8")


def package_directory(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(name)
    return Path(spec.origin).parent


if __name__ == "__main__":
    set_delay(package_directory("nixl_cu12") / "_api.py")
