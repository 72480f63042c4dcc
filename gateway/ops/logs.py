"""Log lines for the person on call.

Rule of this room: one line per request, key=value, the request id first. No message text, no header values, no
bodies; reasons come from the gateway itself.
"""

from __future__ import annotations

import logging

from gateway.net.records import Outcome, RequestRecord

ACCESS = logging.getLogger("ppd_gateway.access")
FAULTS = logging.getLogger("ppd_gateway.fault")
PODS = logging.getLogger("ppd_gateway.pod")
MAIN = logging.getLogger("ppd_gateway")


def set_up(level: str, worker: int | None = None) -> None:
    """Log to standard error. worker: the number of this process, where there are several."""
    who = "" if worker is None else f"worker={worker} "
    logging.basicConfig(level=level.upper(), format=f"%(asctime)s %(levelname)s %(name)s {who}%(message)s")
    logging.getLogger("aiohttp").setLevel("WARNING")


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
    """Writes what happens to the log."""

    def started(self, record: RequestRecord) -> None:
        """Nothing to say yet."""

    def finished(self, record: RequestRecord) -> None:
        quiet = record.route is None and record.outcome is Outcome.OK
        ACCESS.log(logging.DEBUG if quiet else logging.INFO, "%s", request_line(record))

    def fault(self, kind: str, pod: str | None, request_id: str, detail: str) -> None:
        FAULTS.warning("fault=%s id=%s pod=%s detail=%r", kind, request_id, pod or "-", detail)

    def pod_changed(self, pod: str, role: str, up: bool, detail: str) -> None:
        PODS.log(logging.INFO if up else logging.WARNING, "pod=%s role=%s up=%d detail=%r", pod, role, int(up), detail)

    def pod_restarted(self, pod: str, role: str, detail: str) -> None:
        PODS.warning(
            "pod=%s role=%s restarted=1 detail=%r: its KV is gone, what it held is computed again", pod, role, detail
        )

    def pod_tested(self, pod: str, role: str, outcome: str, direct: bool, detail: str) -> None:
        level = logging.INFO if outcome == "ok" else logging.WARNING
        PODS.log(level, "pod=%s role=%s selftest=%s direct=%d detail=%r", pod, role, outcome, int(direct), detail)
