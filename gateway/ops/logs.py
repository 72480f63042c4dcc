"""Log lines for the person on call, or for the machine that collects them.

Rule of this room: one line per request, key=value or JSON, the request id first. No message text, no header values, no
bodies; reasons come from the gateway itself, and of an exception only its kind and its place are told.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
import traceback
from collections.abc import Callable
from functools import lru_cache
from types import NoneType
from typing import Any, TextIO, cast

import msgspec

from gateway.net.records import IdleObserver, Outcome, RequestRecord

ACCESS = logging.getLogger("ppd_gateway.access")
FAULTS = logging.getLogger("ppd_gateway.fault")
PODS = logging.getLogger("ppd_gateway.pod")
MAIN = logging.getLogger("ppd_gateway")

MAX_GATHERED = 1000


def set_up(level: str, worker: int | None = None, log_format: str = "console") -> AccessWriter:
    """Log to standard error; gives the writer of access lines. worker: the number of this process, if of several.

    log_format: `console`, `json`, or `auto`, which is JSON unless a terminal reads along.
    """
    as_json = log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())
    who = "" if worker is None else f"worker={worker} "
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter(worker) if as_json else logging.Formatter(f"%(asctime)s %(levelname)s %(name)s {who}%(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("aiohttp").setLevel("WARNING")
    return AccessWriter(sys.stderr, json_access(worker) if as_json else console_access(who))


Format = Callable[[str, int, RequestRecord], str]
"""Makes a line of (the second, the milliseconds in it, the request)."""


def console_access(who: str = "") -> Format:
    """Access lines as all others look. who: what stands before the first field."""

    head = f"INFO {ACCESS.name} {who}"

    def line(second: str, milliseconds: int, record: RequestRecord) -> str:
        return f"{second},{milliseconds:03d} {head}{request_line(record)}\n"

    return line


def json_access(worker: int | None = None) -> Format:
    """Access lines as JSON, in the fields of `request_fields` behind those of every line."""
    who = {} if worker is None else {"worker": worker}
    head = msgspec.json.encode({"level": "info", "logger": ACCESS.name, **who, "event": "request"}).decode()[1:-1]

    encode = msgspec.json.Encoder().encode

    def line(second: str, milliseconds: int, record: RequestRecord) -> str:
        fields = encode(_told(record)).decode()
        return f'{{"time":"{second}.{milliseconds:03d}Z",{head},{fields[1:]}\n'

    line.utc = True  # type: ignore[attr-defined]
    return line


class JsonFormatter(logging.Formatter):
    """One object per line: time (UTC), level, logger, worker, then `event` and its fields, or `message`."""

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._who = {} if worker is None else {"worker": worker}

    def format(self, record: logging.LogRecord) -> str:
        second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{second}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._who,
        }
        fields = getattr(record, "fields", None)
        line |= {"message": record.getMessage()} if fields is None else fields
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = _where(record.exc_info[1])
        return msgspec.json.encode(line, enc_hook=str).decode()


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} at {frames[-1].filename}:{frames[-1].lineno}" if frames else type(error).__name__


class AccessWriter:
    """Access lines without `logging`, which costs more per line than the line: gathered, and written at once.

    A line may come up to `delay_s` late and behind later lines of other loggers; its time is its own.
    """

    def __init__(self, stream: TextIO, line_of: Format | None = None, delay_s: float = 0.2) -> None:
        self._stream = stream
        self._line_of = line_of or console_access()
        self._utc = getattr(self._line_of, "utc", False)
        self._delay_s = delay_s
        self._lines: list[str] = []
        self._second = 0
        self._stamp = ""
        self._timer: asyncio.TimerHandle | None = None

    def write(self, record: RequestRecord) -> None:
        """Add the line of a request. Call on the event loop."""
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second = second
            if self._utc:
                self._stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            else:
                self._stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        self._lines.append(self._line_of(self._stamp, int((now - second) * 1000), record))
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


_MILLISECONDS = "%.1f"

_FIELDS = (
    ("id", "%s"),
    ("status", "%s"),
    ("outcome", "%s"),
    ("method", "%s"),
    ("path", "%s"),
    ("stream", "%d"),
    ("route", "%s"),
    ("arm", "%s"),
    ("prefill", "%s"),
    ("holder", "%s"),
    ("answered_by", "%s"),
    ("conversation", "%s"),
    ("turn", "%s"),
    ("attempts", "%s"),
    ("prompt_tokens", "%s"),
    ("expected_tokens", "%s"),
    ("cached_tokens", "%s"),
    ("p_cached_tokens", "%s"),
    ("readback_tokens", "%s"),
    ("output_tokens", "%s"),
    ("prefill_ms", _MILLISECONDS),
    ("ttft_ms", _MILLISECONDS),
    ("tpot_ms", _MILLISECONDS),
    ("total_ms", _MILLISECONDS),
    ("shadow_route", "%s"),
    ("class", "%s"),
    ("queued_ms", _MILLISECONDS),
    ("refused", "%s"),
    ("reason", '"%s"'),
    ("shadow_reason", '"%s"'),
)
"""What is told of a request, in order, by stable names: and how people read it."""


def _values(record: RequestRecord) -> tuple[Any, ...]:
    """Those of `_FIELDS`, with None where one does not apply; milliseconds with all their decimals."""
    prefill_s, ttft_s, tpot_s, queued_s = record.prefill_s, record.ttft_s, record.tpot_s, record.queued_s
    return (
        record.request_id,
        record.status or None,
        record.outcome,
        record.method,
        record.path,
        record.stream,
        record.route,
        None if record.route is None else record.arm,
        record.prefill,
        record.holder,
        record.answering,
        record.conversation,
        record.turn,
        record.attempts if record.attempts > 1 else None,
        record.prompt_tokens,
        record.expected_tokens,
        record.cached_tokens,
        record.prefill_cached_tokens,
        record.readback_tokens,
        record.output_tokens,
        None if prefill_s is None else prefill_s * 1000,
        None if ttft_s is None else ttft_s * 1000,
        None if tpot_s is None else tpot_s * 1000,
        record.total_s * 1000,
        record.shadow_route,
        record.service,
        queued_s * 1000 if queued_s > 0.0005 else None,
        record.refused,
        record.reason or None,
        record.shadow_reason,
    )


_Told: Any = msgspec.defstruct("_Told", [(name, Any, None) for name, _ in _FIELDS], omit_defaults=True)
_IN_MILLISECONDS = [name for name, form in _FIELDS if form is _MILLISECONDS]


def _told(record: RequestRecord) -> msgspec.Struct:
    """What is told of a request, for machines: without what does not apply."""
    told = _Told(*_values(record))
    for name in _IN_MILLISECONDS:
        if (value := getattr(told, name)) is not None:
            setattr(told, name, round(value, 1))
    return cast(msgspec.Struct, told)


def request_fields(record: RequestRecord) -> dict[str, Any]:
    """What is told of a request, by stable names. Times in milliseconds; what does not apply is left out."""
    return cast(dict[str, Any], msgspec.to_builtins(_told(record)))


def request_line(record: RequestRecord) -> str:
    """The same for people."""
    values = _values(record)
    return _line_with(tuple(map(type, values))) % values


@lru_cache(maxsize=256)
def _line_with(types: tuple[type, ...]) -> str:
    """A line's format by the types of its values: most requests have the same ones. None leaves nothing in it."""
    told = zip(_FIELDS, types, strict=True)
    forms = ["%.0s" if kind is NoneType else f" {name}={form}" for (name, form), kind in told]
    return "".join(forms).lstrip()


def _event(event: str, **fields: object) -> dict[str, object]:
    """What the JSON of a line is to say, for `extra`."""
    return {"fields": {"event": event, **{name: value for name, value in fields.items() if value is not None}}}


class LogObserver(IdleObserver):
    """Writes what happens to the log.

    access: where the lines of answered requests go, in place of the logger `ppd_gateway.access`.
    """

    def __init__(self, access: AccessWriter | None = None) -> None:
        self._access = access

    def finished(self, record: RequestRecord) -> None:
        quiet = record.route is None and record.outcome is Outcome.OK
        level = logging.DEBUG if quiet else logging.INFO
        if not ACCESS.isEnabledFor(level):
            return
        if self._access is not None and not quiet:
            self._access.write(record)
        else:
            ACCESS.log(level, "%s", request_line(record), extra=_event("request", **request_fields(record)))

    def fault(self, kind: str, pod: str | None, request_id: str, detail: str) -> None:
        said = _event("fault", fault=kind, id=request_id, pod=pod, detail=detail)
        FAULTS.warning("fault=%s id=%s pod=%s detail=%r", kind, request_id, pod or "-", detail, extra=said)

    def pod_changed(self, pod: str, role: str, up: bool, detail: str) -> None:
        level, said = logging.INFO if up else logging.WARNING, _event("pod", pod=pod, role=role, up=up, detail=detail)
        PODS.log(level, "pod=%s role=%s up=%d detail=%r", pod, role, int(up), detail, extra=said)

    def pod_restarted(self, pod: str, role: str, detail: str) -> None:
        PODS.warning(
            "pod=%s role=%s restarted=1 detail=%r: its KV is gone, what it held is computed again",
            pod,
            role,
            detail,
            extra=_event("pod", pod=pod, role=role, restarted=True, detail=detail),
        )

    def pod_models(self, pod: str, role: str, models: tuple[str, ...]) -> None:
        said = _event("pod", pod=pod, role=role, models=list(models))
        PODS.info("pod=%s role=%s models=%r", pod, role, ",".join(models), extra=said)

    def pair_probed(self, prefill: str, decode: str, works: bool, detail: str) -> None:
        level = logging.INFO if works else logging.WARNING
        said = _event("pair", prefill=prefill, decode=decode, works=works, detail=detail)
        PODS.log(level, "pair=%s>%s works=%d detail=%r", prefill, decode, works, detail, extra=said)

    def pod_breaker(self, pod: str, role: str, state: str, detail: str) -> None:
        level = logging.INFO if state == "closed" else logging.WARNING
        said = _event("pod", pod=pod, role=role, breaker=state, detail=detail)
        PODS.log(level, "pod=%s role=%s breaker=%s detail=%r", pod, role, state, detail, extra=said)

    def pod_added(self, pod: str, role: str, source: str) -> None:
        said = _event("pod", pod=pod, role=role, added=True, source=source)
        PODS.info("pod=%s role=%s added=1 source=%s", pod, role, source, extra=said)

    def pod_removed(self, pod: str, role: str, detail: str) -> None:
        said = _event("pod", pod=pod, role=role, removed=True, detail=detail)
        PODS.info("pod=%s role=%s removed=1 detail=%r", pod, role, detail, extra=said)

    def pod_tested(self, pod: str, role: str, outcome: str, direct: bool, detail: str) -> None:
        level = logging.INFO if outcome == "ok" else logging.WARNING
        said = _event("pod", pod=pod, role=role, selftest=outcome, direct=direct, detail=detail)
        PODS.log(
            level, "pod=%s role=%s selftest=%s direct=%d detail=%r", pod, role, outcome, int(direct), detail, extra=said
        )
