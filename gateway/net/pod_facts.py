"""What a pod says of itself on `/metrics`, `/v1/models` and `/version`, and whether it is still the same process.

Rule of this room: a pod that says nothing is no worse than one that says much; what is missing stays unknown. The page
is scanned for the few lines that matter: a parser of all its lines would take longer than many decisions.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from gateway.core.pods import Pod, PodFacts
from gateway.net.upstream import PodClient, PodFault

STARTED = b"process_start_time_seconds"
"""Of the Python process; prometheus_client leaves it out where vLLM runs several API servers (`--api-server-count`)."""

WORK = (b"vllm:prompt_tokens_total", b"vllm:generation_tokens_total", b"vllm:request_success_total")
"""Counters that begin at 0 in a new process and are never reset in an old one."""

FETCHED = (b"vllm:nixl_bytes_transferred_sum", b"vllm:external_prefix_cache_hits_total")
"""KV read from other pods, as bytes and as tokens (vLLM `nixl/stats.py`, `v1/metrics/loggers.py`)."""

_LABEL = {name: re.compile(rb'[{,]%s="([^"]*)"' % name) for name in (b"block_size", b"num_gpu_blocks")}
_CACHING = re.compile(rb'[{,]enable_prefix_caching="(True|False)"')


class ModelList(msgspec.Struct):
    """A pod's `/v1/models`, its entries as the raw JSON they came in."""

    data: list[msgspec.Raw] = []


class ModelCard(msgspec.Struct):
    """What matters of one entry."""

    id: str
    max_model_len: int | None = None


class _Version(msgspec.Struct):
    version: str = ""


def read_metrics(page: bytes, now: float) -> PodFacts:
    """The facts on a `/metrics` page (vLLM `v1/metrics/loggers.py`)."""
    config = [labels for labels, _ in _samples(page, b"vllm:cache_config_info")]
    caching = {found[1] == b"True" for labels in config if (found := _CACHING.search(labels))}
    started = next((value for _, value in _samples(page, STARTED)), b"")
    work = [[_number(value) for _, value in _samples(page, name)] for name in WORK]
    fetched = [sum(_number(value) for _, value in _samples(page, name)) for name in FETCHED]
    return PodFacts(
        block_size=max((_label(labels, b"block_size") for labels in config), default=0),
        num_blocks=sum(_label(labels, b"num_gpu_blocks") for labels in config),
        prefix_caching=all(caching) if caching else None,
        running=int(sum(_number(value) for _, value in _samples(page, b"vllm:num_requests_running"))),
        waiting=int(sum(_number(value) for _, value in _samples(page, b"vllm:num_requests_waiting"))),
        kv_usage=max((_number(value) for _, value in _samples(page, b"vllm:kv_cache_usage_perc")), default=0.0),
        instance=started.decode("ascii", "replace"),
        work=tuple(sum(values) for values in work) if all(work) else (),
        fetched_bytes=fetched[0],
        fetched_tokens=fetched[1],
        seen_at=now,
    )


def why_replaced(known: PodFacts, now: PodFacts, *, was_gone: bool) -> str | None:
    """How it shows that the pod's process is another one than before, or None when it is the same.

    known: facts from before. now: facts of this moment, empty when they could not be read. was_gone: its port was
    closed in between, which may also be a Service without a ready pod behind it.
    """
    if known.instance and now.instance:
        if known.instance == now.instance:
            return None
        return f"its process started at {_clock(now.instance)}, the one before at {_clock(known.instance)}"
    if was_gone:
        return "its port was closed, and it does not tell when its process started"
    if any(after < before for before, after in zip(known.work, now.work, strict=False)):
        return "its counters of tokens and requests went backwards"
    return None


class Scout:
    """Asks pods for their facts."""

    def __init__(self, client: PodClient, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s

    async def facts(self, pod: Pod) -> PodFacts:
        """What `/metrics` tells now, with what is known of version and models; empty when it cannot be read."""
        page = await self._read(pod, "/metrics")
        if page is None:
            return PodFacts()
        known = pod.facts
        fresh = read_metrics(page, time.monotonic())
        return msgspec.structs.replace(
            fresh, version=known.version, models=known.models, max_model_len=known.max_model_len
        )

    async def models(self, pod: Pod) -> ModelList | None:
        """The pod's models."""
        body = await self._read(pod, "/v1/models")
        try:
            return None if body is None else msgspec.json.decode(body, type=ModelList)
        except msgspec.DecodeError:
            return None

    async def version(self, pod: Pod) -> str:
        """vLLM's version, or nothing."""
        body = await self._read(pod, "/version")
        try:
            return "" if body is None else msgspec.json.decode(body, type=_Version).version
        except msgspec.DecodeError:
            return ""

    async def healthy(self, pod: Pod) -> None:
        """Return when `/health` says 200. Raises PodFault."""
        status, _ = await self._get(pod, "/health")
        if status != 200:
            raise PodFault("status", str(status))

    async def _read(self, pod: Pod, path: str) -> bytes | None:
        try:
            status, body = await self._get(pod, path)
        except PodFault:
            return None
        return body if status == 200 else None

    async def _get(self, pod: Pod, path: str) -> tuple[int, bytes]:
        answer = await self._client.call("GET", pod.url, path, [], b"", self._timeout_s)
        try:
            return answer.status, await answer.read(self._timeout_s)
        finally:
            answer.close()


def cards(models: ModelList) -> list[tuple[ModelCard, msgspec.Raw]]:
    """The entries that can be read, each with its JSON."""
    found = []
    for entry in models.data:
        try:
            found.append((msgspec.json.decode(entry, type=ModelCard), entry))
        except msgspec.DecodeError:
            continue
    return found


def _samples(page: bytes, name: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(labels, value) of every sample of that very name; labels with their braces, empty when there are none."""
    at, length = 0, len(name)
    while (at := page.find(name, at)) >= 0:
        after = page[at + length : at + length + 1]
        begins_line = at == 0 or page[at - 1] == 0x0A
        at += length
        if not begins_line or after not in (b"{", b" "):
            continue
        end = page.find(b"\n", at)
        line = page[at : len(page) if end < 0 else end]
        labels, _, value = line.rpartition(b"} ") if after == b"{" else (b"", b"", line.strip())
        yield labels, value
        at += len(line)


def _label(labels: bytes, name: bytes) -> int:
    found = _LABEL[name].search(labels)
    return int(found[1]) if found and found[1].isdigit() else 0


def _number(value: bytes) -> float:
    """A sample's value; 0 for what is not a finite number."""
    try:
        number = float(value)
    except ValueError:
        return 0.0
    return number if abs(number) < float("inf") else 0.0


def _clock(started: str) -> str:
    """A start time as a clock shows it, with tenths: two processes may start within a second of each other."""
    try:
        return datetime.fromtimestamp(float(started), UTC).isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return started
