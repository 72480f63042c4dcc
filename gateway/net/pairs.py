"""Does a hand-over between these two pods work? Tried once after either was restarted, before clients do.

Rule of this room: a probe is a hand-over like any other, of a prompt of its own, beside the traffic. A pair that has
not passed gets none: other prefill pods do, or the decode pod computes the prompt itself, so nobody waits for a probe.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time

import msgspec

from gateway.core.pairs import Trial
from gateway.core.pods import Pod
from gateway.net import headers as names
from gateway.net.parts import Parts
from gateway.net.upstream import PodFault
from gateway.wire.answers import engine_of, read_prefill
from gateway.wire.contract import Api
from gateway.wire.fields import parse
from gateway.wire.handovers import Handover
from gateway.wire.legs import decode_body, prefill_body, release_body
from gateway.wire.readback import release_params

TARGET = "/v1/completions"
DEFAULT_BLOCK_SIZE = 128
_TOKEN_IDS = range(20, 120)
"""Ids that every vocabulary has and none uses for anything special."""


class PairProbes:
    """Probes the pairs that are held back. first_retry_s doubles with every failure, up to last_retry_s.

    offering: decode pods that kept the blocks of a probe for a readback.
    """

    def __init__(self, parts: Parts, first_retry_s: float = 1.0, last_retry_s: float = 60.0) -> None:
        self._parts = parts
        self._running: set[asyncio.Task[None]] = set()
        self.offering: set[str] = set()
        self.first_retry_s = first_retry_s
        self.last_retry_s = last_retry_s

    def consider(self) -> None:
        """Begin what is due and can be done now."""
        pairs, fleet = self._parts.fleet.pairs, self._parts.fleet
        if not pairs:
            return
        for trial in pairs.due(time.monotonic()):
            if len(self._running) >= self._parts.settings.pairs.at_once:
                return
            prefill, decode = fleet.get(trial.pair[0]), fleet.get(trial.pair[1])
            if prefill is None or decode is None or not (prefill.up and decode.up):
                continue
            trial.running = True
            task = asyncio.ensure_future(self._probe(trial, prefill, decode))
            self._running.add(task)
            task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """End all probes."""
        tasks, self._running = self._running, set()
        for task in tasks:
            task.remove_done_callback(self._ended)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._parts.observer.fault("bug", None, "-", f"a probe of two pods: {type(error).__name__}")
            return
        self.consider()

    async def _probe(self, trial: Trial, prefill: Pod, decode: Pod) -> None:
        pairs, observer = self._parts.fleet.pairs, self._parts.observer
        limit_s = self._parts.settings.pairs.timeout_s
        began = time.monotonic()
        try:
            async with asyncio.timeout(limit_s):
                tried = await self.hand_over(prefill, decode)
        except TimeoutError:
            why = f"no hand-over within {limit_s:g} s"
        except PodFault as fault:
            why = str(fault)
        else:
            if not tried:
                pairs.drop(trial)
            elif pairs.proven(trial):
                detail = f"a hand-over took {time.monotonic() - began:.2f} s"
                observer.pair_probed(prefill.url, decode.url, True, detail)
            return
        finally:
            trial.running = False
        wait_s = min(self.last_retry_s, self.first_retry_s * 2.0 ** min(trial.tries, 30))
        if pairs.failed(trial, why, time.monotonic() + wait_s * random.uniform(0.9, 1.1)):
            observer.pair_probed(prefill.url, decode.url, False, why)

    async def hand_over(self, prefill: Pod, decode: Pod) -> bool:
        """One prompt through both pods; False where they have no model in common. Raises PodFault."""
        model = next((name for name in prefill.facts.models if name in decode.facts.models), None)
        if model is None:
            if prefill.facts.models and decode.facts.models:
                return False
            raise PodFault("no_model", "a pod of the two names no model (does it want an API key?)")
        body = msgspec.json.encode(
            {
                "model": model,
                "prompt": random.choices(_TOKEN_IDS, k=(prefill.facts.block_size or DEFAULT_BLOCK_SIZE) + 1),
                "max_tokens": 1,
                "temperature": 0,
                "cache_salt": secrets.token_hex(16),
            }
        )
        handover = self._parts.origins.begin(prefill)
        fields, request_id = parse(body), f"ppd-pairprobe-{secrets.token_hex(8)}"
        asking = self._first(prefill, handover, prefill_body(Api.COMPLETIONS, fields, (), handover.ask), request_id)
        if handover.tell is None:
            tell = await asking
            text = await self._ask(decode, decode_body(fields, tell, ask_usage=False), request_id + handover.mark)
            await self._refuse_offer(prefill, decode, text, request_id)
            return True
        first = asyncio.ensure_future(asking)
        second = asyncio.ensure_future(
            self._ask(decode, decode_body(fields, handover.tell, ask_usage=False), request_id)
        )
        try:
            await asyncio.gather(first, second)
        finally:
            for leg in (first, second):
                leg.cancel()
            await asyncio.gather(first, second, return_exceptions=True)
        return True

    async def _refuse_offer(self, prefill: Pod, decode: Pod, answer: bytes, request_id: str) -> None:
        """A decode pod with `bidirectional_kv_xfer` keeps the blocks for a readback, for which nobody will ask."""
        offer = read_prefill(answer).handover
        params = None if offer is None else release_params(offer)
        if params is not None:
            self.offering.add(decode.url)
            with contextlib.suppress(PodFault):
                await self._ask(prefill, release_body(params), f"{request_id}-release")

    async def _first(self, prefill: Pod, handover: Handover, body: bytes, request_id: str) -> msgspec.Raw:
        text = await self._ask(prefill, body, request_id + handover.mark, handover.rank)
        tell = handover.answered(read_prefill(text))
        if tell is None:
            raise PodFault("no_handover", "the prefill pod keeps nothing for the decode pod")
        self._parts.met_engine(prefill, engine_of(tell))
        self._parts.origins.learn(prefill, tell)
        return tell

    async def _ask(self, pod: Pod, body: bytes, request_id: str, rank: int | None = None) -> bytes:
        limit_s = self._parts.settings.pairs.timeout_s
        headers = names.to_pod([("Content-Type", "application/json")], request_id, None, rank)
        try:
            answer = await self._parts.client.call("POST", pod.url, TARGET, headers, body, limit_s)
            try:
                text = await answer.read(limit_s)
            finally:
                answer.close()
        except PodFault as fault:
            self._parts.notice(pod, fault)
            raise PodFault(fault.word, f"{pod.url}: {fault.detail}") from fault
        if answer.status != 200:
            raise PodFault("status", f"{pod.url}: {answer.status}")
        return text
