"""How far it is, on a terminal or in a log.

Rule of this room: one line on stdout per cell that was measured; on a terminal, a line on stderr that is written over
and says how far it is and how long it will take.
"""

from __future__ import annotations

import time
from typing import TextIO

from gateway.ops.profile.measure import Measured
from gateway.ops.profile.plan import Plan, Task, estimate_s
from lut.raw import RawPoint

_BAR = 24
_CLEAR = "\r\x1b[K"


class Progress:
    """Counts cells, and scales the estimate of what is left by how the estimates went so far."""

    def __init__(self, plan: Plan, out: TextIO, terminal: TextIO | None) -> None:
        self._out = out
        self._terminal = terminal
        self._total = plan.num_tasks
        self._left_s = sum(map(estimate_s, plan.tasks()))
        self._done = 0
        self._measured = 0
        self._known = 0
        self._estimated_s = 0.0
        self._taken_s = 0.0
        self._began_s = 0.0

    def begins(self, task: Task) -> None:
        self._began_s = time.monotonic()
        self._draw(str(task))

    def done(self, task: Task, measured: Measured, line: RawPoint) -> None:
        self._taken_s += time.monotonic() - self._began_s
        self._estimated_s += estimate_s(task)
        self._measured += 1
        self._count(task)
        self._say(f"[{self._done}/{self._total}] {task}: {summary(measured)}")
        self._draw("")

    def skipped(self, task: Task, *, known: bool) -> None:
        self._known += known
        self._count(task)
        if not known:
            self._say(f"[{self._done}/{self._total}] {task}: not run, overloaded at a lower rate")

    def end(self) -> None:
        """Leave the terminal clean, and say what was done."""
        self._draw(None)
        not_run = self._done - self._measured - self._known
        parts = [f"{self._measured} cells measured in {clock(self._taken_s)}"]
        if not_run:
            parts.append(f"{not_run} above an overloaded one not run")
        if self._known:
            parts.append(f"{self._known} were there already")
        self._say(", ".join(parts))

    @property
    def eta_s(self) -> float:
        """Seconds that are left, as far as one can tell."""
        scale = self._taken_s / self._estimated_s if self._estimated_s > 0 else 1.0
        return max(0.0, self._left_s) * scale

    def _count(self, task: Task) -> None:
        self._done += 1
        self._left_s -= estimate_s(task)

    def _say(self, line: str) -> None:
        self._draw(None)
        self._out.write(f"{line}\n")
        self._out.flush()

    def _draw(self, what: str | None) -> None:
        """what: beside the bar; None takes the line away."""
        if self._terminal is None:
            return
        line = ""
        if what is not None:
            filled = _BAR * self._done // self._total
            bar = "█" * filled + "·" * (_BAR - filled)
            line = f"{bar} {self._done}/{self._total} eta {clock(self.eta_s)} {what}"
        self._terminal.write(_CLEAR + line[:118])
        self._terminal.flush()


def summary(measured: Measured) -> str:
    """One cell in words."""
    parts = [f"{measured.samples} turns, {measured.success:.1%} good"]
    if measured.ttft_mean_s is not None and measured.ttft_p99_s is not None:
        parts.append(f"ttft {measured.ttft_mean_s * 1e3:.1f} ms (p99 {measured.ttft_p99_s * 1e3:.1f})")
    if measured.tpot_mean_s is not None and measured.tpot_p99_s is not None:
        parts.append(f"tpot {measured.tpot_mean_s * 1e3:.2f} ms (p99 {measured.tpot_p99_s * 1e3:.2f})")
    if measured.rate_achieved is not None:
        parts.append(f"{measured.rate_achieved:.2f} turns/s")
    if measured.cold:
        parts.append(f"{measured.cold} cold turns left out")
    if measured.overloaded is not None:
        parts.append(f"OVERLOADED: {measured.overloaded}")
    if measured.remark:
        parts.append(measured.remark)
    return ", ".join(parts)


def clock(seconds: float) -> str:
    """`1 h 02 min`, `2 min 03 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
