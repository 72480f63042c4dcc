"""How much of the machine others took while pods were measured.

Rule of this room: reads /proc, touches nothing. Others are all processes but this one and the pods'.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from loadtest.vllm_cpu.pod import Pod
from loadtest.vllm_cpu.processes import PROC, members

_IDLE = slice(3, 5)
"""Fields of a `cpu` line of /proc/stat: idle and waiting for I/O."""
_TIMES = slice(11, 13)
"""Fields of /proc/PID/stat after the name: user and system."""


class Bystanders:
    """`with Bystanders(pods) as others: …`, then `others.share`: of all cores, 0 to 1."""

    def __init__(self, pods: Sequence[Pod]) -> None:
        self._pods = pods
        self._began = (0.0, 0.0, 0.0)
        self.share = 0.0

    def __enter__(self) -> Bystanders:
        self._began = self._now()
        return self

    def __exit__(self, *_: object) -> None:
        began_s, began_busy_s, began_ours_s = self._began
        now_s, busy_s, ours_s = self._now()
        theirs_s = (busy_s - began_busy_s) - (ours_s - began_ours_s)
        self.share = min(1.0, max(0.0, theirs_s / ((now_s - began_s) * (os.cpu_count() or 1))))

    def _now(self) -> tuple[float, float, float]:
        """(clock, CPU seconds of the machine, CPU seconds of the pods and this process)."""
        ticks = os.sysconf("SC_CLK_TCK")
        numbers = [int(field) for field in (PROC / "stat").read_text(encoding="ascii").split("\n")[0].split()[1:9]]
        processes = {os.getpid()}.union(*(members(pod.leader) for pod in self._pods if pod.leader))
        ours = sum(_ticks_of(process) for process in processes)
        return time.monotonic(), (sum(numbers) - sum(numbers[_IDLE])) / ticks, ours / ticks


def _ticks_of(process: int) -> int:
    try:
        text = (PROC / str(process) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(field) for field in text.rpartition(")")[2].split()[_TIMES])
