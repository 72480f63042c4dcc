"""Asking one pod what it is.

Rule of this room: questions and their answers, no opinion. Whatever a pod does not say stays unknown.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import msgspec

from gateway.core.pods import Pod
from gateway.net.events import at_host
from gateway.net.exchange import Headers
from gateway.net.pod_facts import Scout, cards
from gateway.net.selftest import Verdict
from gateway.net.upstream import PodClient, PodFault
from gateway.ops.doctor.listen import Heard
from gateway.wire.contract import Api
from gateway.wire.kv_events import BadEventError, EventSource, read_sources
from gateway.wire.readback import RENDER_PATHS


@dataclass
class PodReport:
    """What one pod said.

    fault: why it cannot be used at all. locked: it wants a key that it did not get. skew_s: how far its clock is ahead
    of this machine's, to half a second. max_model_lens: by model. sources: where it publishes KV events, by DP rank;
    None when it does not know the question. renders: whether it serves the render endpoints. kept: the outcome of the
    self-test. heard: of each source. bootstrap_fault: why its Mooncake bootstrap server could not be asked.
    """

    pod: Pod
    fault: str | None = None
    locked: bool = False
    skew_s: float | None = None
    max_model_lens: dict[str, int] = field(default_factory=dict)
    sources: dict[int, EventSource] | None = None
    renders: bool | None = None
    kept: Verdict | None = None
    heard: dict[int, Heard] = field(default_factory=dict)
    bootstrap_fault: str | None = None

    @property
    def usable(self) -> bool:
        """Whether there is any sense in asking it for tokens."""
        return self.fault is None and not self.locked


class Asker:
    """Asks pods. limit_s: of each question."""

    def __init__(self, client: PodClient, limit_s: float) -> None:
        self._client = client
        self._limit_s = limit_s
        self._scout = Scout(client, limit_s)

    async def look(self, pod: Pod, given: EventSource | None = None) -> PodReport:
        """All that can be asked without computing anything. given: its event source, where the operator named one."""
        report = PodReport(pod)
        try:
            status, headers, _ = await self._get(pod, "/health")
            if status != 200:
                report.fault = f"/health says {status}"
                return report
            report.skew_s = _skew(headers)
            status, _, _ = await self._get(pod, "/v1/models")
        except PodFault as fault:
            report.locked = fault.word == "status" and fault.detail.startswith("401")
            report.fault = None if report.locked else str(fault)
            return report
        report.locked = status in (401, 403)
        pod.facts = await self._scout.facts(pod)
        if report.locked:
            return report
        models = await self._scout.models(pod)
        known = [card for card, _ in cards(models)] if models is not None else []
        report.max_model_lens = {card.id: card.max_model_len or 0 for card in known}
        pod.facts = msgspec.structs.replace(
            pod.facts,
            version=await self._scout.version(pod),
            models=tuple(report.max_model_lens),
            max_model_len=(known[0].max_model_len or 0) if known else 0,
        )
        report.sources = {0: given} if given is not None else await self._sources(pod)
        report.renders = await self._renders(pod)
        return report

    async def _sources(self, pod: Pod) -> dict[int, EventSource] | None:
        try:
            status, _, body = await self._get(pod, "/kv_event_sources")
            found = read_sources(body) if status == 200 else None
        except (PodFault, BadEventError):
            return None
        host = urlsplit(pod.url).hostname or ""
        return None if found is None else {rank: at_host(source, host) for rank, source in found.items()}

    async def _renders(self, pod: Pod) -> bool | None:
        if not pod.facts.models:
            return None
        body = msgspec.json.encode({"model": pod.facts.models[0], "prompt": "-", "max_tokens": 1})
        headers = [("Content-Type", "application/json")]
        try:
            path = RENDER_PATHS[Api.COMPLETIONS]
            answer = await self._client.call("POST", pod.url, path, headers, body, self._limit_s)
            answer.close()
        except PodFault:
            return None
        return answer.status == 200

    async def _get(self, pod: Pod, path: str) -> tuple[int, Headers, bytes]:
        answer = await self._client.call("GET", pod.url, path, [], b"", self._limit_s)
        try:
            return answer.status, answer.headers, await answer.read(self._limit_s)
        finally:
            answer.close()


def _skew(headers: Headers) -> float | None:
    """From the `Date` of an answer that has just come; it is in whole seconds, so half of one is added."""
    for name, value in headers:
        if name.lower() == "date":
            try:
                return parsedate_to_datetime(value).timestamp() + 0.5 - time.time()
            except (ValueError, TypeError):
                return None
    return None
