"""Lets NIXL's progress thread sleep: the one line by which the pods differ from the wheels.

Rule of this room: runs under the pods' own interpreter, as a script, standard library only; vLLM is not
touched. NIXL 1.5.1 starts its UCX progress thread with a delay of 0, which is `poll(…, 0)` in a loop: one
core per pod, for ever, idle or not. Nobody notices on a GPU machine; three pods on two cores take seconds
for what needs a tenth. A delay only bounds the sleep, a transfer wakes the thread at once.
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
