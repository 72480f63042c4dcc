"""Fetching a conversation's KV for P from the pod that holds it.

Rule of this room: ids first, then the holder's own word for the blocks of those ids; whatever goes wrong here costs
the gain, never the request: the caller goes on with a plain prefill leg.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec

from gateway.core.pods import Pod, Role
from gateway.net import headers as names
from gateway.net.exchange import Headers
from gateway.net.parts import Parts
from gateway.net.records import RequestRecord
from gateway.net.tracing import Step, traced
from gateway.net.upstream import PodFault
from gateway.wire import readback as wire
from gateway.wire.answers import read_prefill
from gateway.wire.contract import Api
from gateway.wire.fields import Fields
from gateway.wire.readback_prompts import may_read_back

PROOF_S = 5.0
"""How long the first readback on a P may take. One without `bidirectional_kv_xfer` waits for ever."""

MIN_TOKENS = 64
"""Less than this is not worth a transfer (vLLM's own `kv_recompute_threshold`)."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """Blocks that the holder keeps for P.

    ids: of the whole prompt. tokens: how many of them the blocks cover. offer: the holder's words, for release.
    """

    ids: list[int]
    tokens: int
    params: msgspec.Raw
    offer: msgspec.Raw


class RecallFault(Exception):
    """No readback this time. word: for metrics, of a small fixed set."""

    def __init__(self, word: str, detail: str = "") -> None:
        super().__init__(detail or word)
        self.word = word


def offered(parts: Parts, api: Api, fields: Fields) -> bool:
    """Whether a request's history may be read back, as far as is known before anybody is asked."""
    if not parts.settings.readback or not may_read_back(api, fields):
        return False
    if api in wire.TOKENIZES:
        return True
    path = wire.RENDER_PATHS[api]
    return any(path not in parts.unrendered.get(pod.url, ()) for pod in parts.fleet.of(Role.PREFILL))


@dataclass(frozen=True, slots=True)
class Recall:
    """One request's readback. headers: what all its legs begin with. Limits in seconds."""

    parts: Parts
    headers: Headers
    record: RequestRecord
    api: Api
    fields: Fields
    session_id: str | None

    async def fetch(self, holder: Pod, prefill: Pod, resident_tokens: int) -> Recalled:
        """Tokenise on P, recall on the holder. Raises RecallFault."""
        began = time.monotonic()
        ids = wire.own_ids(self.fields) if self.api is Api.COMPLETIONS else None
        ids = ids or await self._ids(prefill)
        block = self.parts.residency.cache(holder).block_size
        tokens = min(resident_tokens, len(ids) - 1) // block * block
        if tokens < max(MIN_TOKENS, block):
            raise RecallFault("too_little", f"{tokens} tokens to read")
        self.record.ids_s = time.monotonic() - began
        body = wire.recall_body(self.fields, ids[:tokens])
        began = time.monotonic()
        status, text = await self._ask(holder, "/v1/completions", body, self.session_id)
        self.record.recall_s = time.monotonic() - began
        if status != 200:
            raise RecallFault("recall", f"status {status}")
        answer = read_prefill(text)
        params = wire.readback_params(answer.handover, ids) if answer.handover is not None else None
        if params is None or answer.handover is None:
            raise RecallFault("recall", "no blocks in the answer")
        if answer.usage is not None and (answer.usage.cached_tokens or 0) < tokens - 2 * block:
            detail = f"{holder.url} had {answer.usage.cached_tokens or 0} of {tokens} tokens"
            self.parts.observer.fault("recall_recomputed", holder.url, self.record.request_id, detail)
        return Recalled(ids, tokens, params, answer.handover)

    async def _ids(self, pod: Pod) -> list[int]:
        if wire.RENDER_PATHS[self.api] not in self.parts.unrendered.get(pod.url, ()):
            exact = wire.render_request(self.api, self.fields)
            status, text = await self._ask(pod, exact.path, exact.body, None)
            if status == 200 and (ids := wire.read_ids(text)):
                return ids
            if wire.renders_none(status, text):
                self.parts.unrendered.setdefault(pod.url, set()).add(exact.path)
        request = wire.tokenize_request(self.api, self.fields)
        if request is None:
            raise RecallFault("prompt", "the prompt may be shaped in ways that /tokenize does not know")
        status, text = await self._ask(pod, request.path, request.body, None)
        ids = wire.read_ids(text) if status == 200 else None
        if not ids:
            raise RecallFault("ids", f"status {status}")
        return ids

    async def _ask(self, pod: Pod, path: str, body: bytes, session_id: str | None) -> tuple[int, bytes]:
        headers = names.of_leg(self.headers, f"{self.record.request_id}-recall", session_id)
        headers = traced(self.record.trace, Step.RECALL, pod.url, headers)
        word: str | None = "cancelled"
        began = time.monotonic()
        limit_s = self.parts.settings.timeouts.recall_s
        try:
            answer = await self.parts.client.call("POST", pod.url, path, headers, body, limit_s)
            try:
                text = await answer.read(max(0.001, limit_s - (time.monotonic() - began)))
                word = None if answer.status == 200 else "status"
                return answer.status, text
            finally:
                answer.close()
        except PodFault as fault:
            word = fault.word
            self.parts.notice(pod, fault)
            raise RecallFault(f"recall_{fault.word}", fault.detail) from fault
        finally:
            if self.record.trace is not None:
                self.record.trace.over(Step.RECALL, word)
