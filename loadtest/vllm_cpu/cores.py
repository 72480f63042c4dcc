"""Where the threads of pods may run.

Rule of this room: sets affinities of pods' threads, nothing else. vLLM's CPU engine binds itself to the last core it
finds, whatever `VLLM_CPU_OMP_THREADS_BIND` says: all pods of a machine then share one core, and a prefill pod stands
still while a decode pod is busy (seen: 1.5 s for a prompt of 27 ms). Pods on hardware of their own do not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from loadtest.vllm_cpu.pod import Pod
from loadtest.vllm_cpu.processes import PROC, members


def unbind(pods: Iterable[Pod]) -> int:
    """Let all threads of these pods run on every core of this process; returns how many threads there were."""
    cores = os.sched_getaffinity(0)
    count = 0
    for pod in pods:
        for process in members(pod.leader) if pod.leader else ():
            for thread in _threads(process):
                try:
                    os.sched_setaffinity(thread, cores)
                except ProcessLookupError:  # it has ended since
                    continue
                count += 1
    return count


def _threads(process: int) -> list[int]:
    try:
        return [int(entry.name) for entry in (PROC / str(process) / "task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return []
