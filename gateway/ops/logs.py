"""Log lines for the person on call.

Rule of this room: one line per request, key=value, the request id first. No message text, no header values, no
bodies; reasons come from the gateway itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from typing import TextIO

from gateway.net.records import Outcome, RequestRecord

ACCESS = logging.getLogger("ppd_gateway.access")
FAULTS = logging.getLogger("ppd_gateway.fault")
PODS = logging.getLogger("ppd_gateway.pod")
MAIN = logging.getLogger("ppd_gateway")

MAX_GATHERED = 1000


def set_up(level: str, worker: int | None = None) -> AccessWriter:
    """Log to standard error; gives the writer of access lines. worker: the number of this process, if of several."""
    who = "" if worker is None else f"worker={worker} "
    logging.basicConfig(level=level.upper(), format=f"%(asctime)s %(levelname)s %(name)s {who}%(message)s")
    logging.getLogger("aiohttp").setLevel("WARNING")
    return AccessWriter(sys.stderr, who)


class AccessWriter:
    """Access lines without `logging`, which costs more per line than the line: gathered, and written at once.

    A line may come up to `delay_s` late and behind later lines of other loggers; its time is its own.
    """

    def __init__(self, stream: TextIO, who: str = "", delay_s: float = 0.2) -> None:
        self._stream = stream
        self._who = who
        self._delay_s = delay_s
        self._lines: list[str] = []
        self._second = 0
        self._stamp = ""
        self._timer: asyncio.TimerHandle | None = None

    def write(self, line: str) -> None:
        """Add a line. Call on the event loop."""
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second = second
            self._stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        milliseconds = int((now - second) * 1000)
        self._lines.append(f"{self._stamp},{milliseconds:03d} INFO {ACCESS.name} {self._who}{line}\n")
        if len(self._lines) >= MAX_GATHERED:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._delay_s, self.flush)

    def flush(self) -> None:
        """Write what was gathered. A stream that cannot be written to loses lines, not requests."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines = self._lines, []
        if lines:
            with contextlib.suppress(OSError, ValueError):
                self._stream.write("".join(lines))
                self._stream.flush()


def request_line(record: RequestRecord) -> str:
    """The one line of a request. Times in milliseconds; what does not apply is left out."""
    fields = {
        "id": record.request_id,
        "status": record.status or None,
        "outcome": record.outcome,
        "method": record.method,
        "path": record.path,
        "stream": int(record.stream),
        "route": record.route,
        "prefill": record.prefill,
        "holder": record.holder,
        "answered_by": record.answering,
        "conversation": record.conversation,
        "turn": record.turn,
        "attempts": record.attempts if record.attempts > 1 else None,
        "prompt_tokens": record.prompt_tokens,
        "expected_tokens": record.expected_tokens,
        "cached_tokens": record.cached_tokens,
        "p_cached_tokens": record.prefill_cached_tokens,
        "readback_tokens": record.readback_tokens,
        "output_tokens": record.output_tokens,
        "prefill_ms": _ms(record.prefill_s),
        "ttft_ms": _ms(record.ttft_s),
        "tpot_ms": _ms(record.tpot_s),
        "total_ms": _ms(record.total_s),
        "reason": f'"{record.reason}"' if record.reason else None,
    }
    return " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)


def _ms(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds * 1000:.1f}"


class LogObserver:
    """Writes what happens to the log.

    access: where the lines of answered requests go, in place of the logger `ppd_gateway.access`.
    """

    def __init__(self, access: AccessWriter | None = None) -> None:
        self._access = access if access is not None and ACCESS.isEnabledFor(logging.INFO) else None

    def started(self, record: RequestRecord) -> None:
        """Nothing to say yet."""

    def finished(self, record: RequestRecord) -> None:
        quiet = record.route is None and record.outcome is Outcome.OK
        if self._access is not None and not quiet:
            self._access.write(request_line(record))
        else:
            ACCESS.log(logging.DEBUG if quiet else logging.INFO, "%s", request_line(record))

    def fault(self, kind: str, pod: str | None, request_id: str, detail: str) -> None:
        FAULTS.warning("fault=%s id=%s pod=%s detail=%r", kind, request_id, pod or "-", detail)

    def pod_changed(self, pod: str, role: str, up: bool, detail: str) -> None:
        PODS.log(logging.INFO if up else logging.WARNING, "pod=%s role=%s up=%d detail=%r", pod, role, int(up), detail)

    def pod_restarted(self, pod: str, role: str, detail: str) -> None:
        PODS.warning(
            "pod=%s role=%s restarted=1 detail=%r: its KV is gone, what it held is computed again", pod, role, detail
        )

    def pod_breaker(self, pod: str, role: str, state: str, detail: str) -> None:
        level = logging.INFO if state == "closed" else logging.WARNING
        PODS.log(level, "pod=%s role=%s breaker=%s detail=%r", pod, role, state, detail)

    def pod_tested(self, pod: str, role: str, outcome: str, direct: bool, detail: str) -> None:
        level = logging.INFO if outcome == "ok" else logging.WARNING
        PODS.log(level, "pod=%s role=%s selftest=%s direct=%d detail=%r", pod, role, outcome, int(direct), detail)
