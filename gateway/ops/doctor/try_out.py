"""Giving the pods something to compute: the same prompt twice, a hand-over per pair, a readback per prefill pod.

Rule of this room: prompts of a few blocks under a salt of their own, one after the other at each decode pod, each
within `pairs.timeout_s`. What is asked is what `net.selftest`, `net.pairs` and `net.readback` ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import msgspec

from gateway.core.pods import Pod, Role
from gateway.net import headers as names
from gateway.net.pairs import DEFAULT_BLOCK_SIZE, TARGET, PairProbes
from gateway.net.parts import Parts
from gateway.net.pod_facts import Scout
from gateway.net.readback import MIN_TOKENS, PROOF_S
from gateway.net.selftest import Proof, SelfTests, Verdict
from gateway.net.upstream import PodFault
from gateway.ops.doctor.listen import Ear
from gateway.ops.doctor.look import PodReport
from gateway.wire.answers import read_prefill
from gateway.wire.contract import Api
from gateway.wire.fields import Fields, parse
from gateway.wire.legs import decode_body, prefill_body, release_body, with_params
from gateway.wire.readback import readback_params, recall_body

AT_ONCE = 4
ROUNDS = 2
"""Prompts that a pod is given until its events are heard: the first may come before it knows of its listener."""

COUNTED_WITHIN_S = 3.0
"""vLLM counts what it read from another pod with the statistics of a later step."""

_LOOK_S = 0.1
_TOKEN_IDS = range(20, 120)


@dataclass(frozen=True, slots=True)
class Tried:
    """A hand-over between two pods. fault: why it failed. fetched: the decode pod counted KV that it read from another
    pod; None where it counts no such thing. offers: it kept the blocks for a readback afterwards."""

    prefill: str
    decode: str
    seconds: float
    fault: PodFault | None = None
    fetched: bool | None = None
    offers: bool = False


@dataclass(frozen=True, slots=True)
class ReadBack:
    """A readback by a prefill pod. word: what failed; empty when it worked. tokens: read, as the pod counts them."""

    prefill: str
    holder: str
    word: str = ""
    detail: str = ""
    tokens: int = 0


class Trials:
    """Tries pods out. limit_s: for whatever is not a hand-over."""

    def __init__(self, parts: Parts, limit_s: float) -> None:
        self._parts = parts
        self._limit_s = limit_s
        self._scout = Scout(parts.client, limit_s)
        self._selftests = SelfTests(parts)
        self._probes = PairProbes(parts)
        self._room = asyncio.Semaphore(AT_ONCE)

    async def pod(self, report: PodReport, *, listen: bool) -> None:
        """Whether it keeps the KV of a prompt and says so, and whether its events tell of it."""
        async with self._room, AsyncExitStack() as stack:
            ears = {}
            if listen and report.pod.facts.prefix_caching is not False:
                for rank, source in (report.sources or {}).items():
                    ears[rank] = await stack.enter_async_context(Ear(source, self._limit_s))
            for _ in range(ROUNDS):
                try:
                    report.kept = await self._selftests.ask(report.pod)
                except PodFault as fault:
                    report.kept = Verdict(Proof.FAILED, str(fault))
                if report.kept.proof in (Proof.FAILED, Proof.BUSY):
                    return
                if all([await ear.listen() for ear in ears.values()]):
                    break
            report.heard = {rank: await ear.heard() for rank, ear in ears.items()}

    async def pairs(self, pairs: Iterable[tuple[Pod, Pod]]) -> list[Tried]:
        """A hand-over for each; those to one decode pod one after the other, so that what it counts is of one."""
        by_decode: dict[str, list[tuple[Pod, Pod]]] = {}
        for prefill, decode in pairs:
            by_decode.setdefault(decode.url, []).append((prefill, decode))
        found = await asyncio.gather(*(self._in_turn(group) for group in by_decode.values()))
        return [tried for group in found for tried in group]

    async def _in_turn(self, pairs: Sequence[tuple[Pod, Pod]]) -> list[Tried]:
        async with self._room:
            return [await self._pair(prefill, decode) for prefill, decode in pairs]

    async def _pair(self, prefill: Pod, decode: Pod) -> Tried:
        limit_s = self._parts.settings.pairs.timeout_s
        before = await self._scout.facts(decode)
        began = time.monotonic()
        try:
            async with asyncio.timeout(limit_s):
                await self._probes.hand_over(prefill, decode)
        except TimeoutError:
            fault = PodFault("timeout", f"no hand-over within {limit_s:g} s")
            return Tried(prefill.url, decode.url, time.monotonic() - began, fault)
        except PodFault as fault:
            return Tried(prefill.url, decode.url, time.monotonic() - began, fault)
        seconds = time.monotonic() - began
        counted = before.fetched_bytes + before.fetched_tokens
        fetched = None
        until = time.monotonic() + COUNTED_WITHIN_S
        while before.seen_at and not fetched and time.monotonic() < until:
            now = await self._scout.facts(decode)
            fetched = now.fetched_bytes + now.fetched_tokens > counted
            if not fetched:
                await asyncio.sleep(_LOOK_S)
        return Tried(prefill.url, decode.url, seconds, None, fetched, decode.url in self._probes.offering)

    async def readback(self, prefill: Pod, holder: Pod) -> ReadBack:
        """Let a decode pod compute a prompt, and a prefill pod read it from there."""

        def failed(word: str, detail: str) -> ReadBack:
            return ReadBack(prefill.url, holder.url, word, detail)

        block = holder.facts.block_size or DEFAULT_BLOCK_SIZE
        ids = random.choices(_TOKEN_IDS, k=max(MIN_TOKENS, 2 * block) // block * block + block + 1)
        fields = parse(
            msgspec.json.encode(
                {
                    "model": next(iter(holder.facts.models), ""),
                    "prompt": ids,
                    "max_tokens": 1,
                    "temperature": 0,
                    "cache_salt": secrets.token_hex(16),
                }
            )
        )
        held = len(ids) // block * block
        try:
            recalled = read_prefill(await self._ask(holder, recall_body(fields, ids[:held]), self._limit_s)).handover
        except PodFault as fault:
            return failed("recall", str(fault))
        params = None if recalled is None else readback_params(recalled, ids)
        if recalled is None or params is None:
            return failed("no_offer", "it keeps nothing for a prefill pod")
        body = with_params(prefill_body(Api.COMPLETIONS, fields), params)
        try:
            answer = read_prefill(await self._ask(prefill, body, PROOF_S))
        except PodFault as fault:
            await self._release(prefill, recalled)
            return failed(fault.word, str(fault))
        if answer.handover is not None:
            await self._take(holder, fields, answer.handover)
        tokens = 0 if answer.usage is None else answer.usage.cached_tokens or 0
        if answer.usage is not None and answer.usage.prompt_tokens_details is not None and not tokens:
            await self._release(prefill, recalled)
            return failed("computed", "it computed the prompt instead of reading it")
        return ReadBack(prefill.url, holder.url, tokens=tokens)

    async def _take(self, decode: Pod, fields: Fields, handover: msgspec.Raw) -> None:
        """So that the prefill pod need not keep its blocks until the lease ends."""
        with contextlib.suppress(PodFault):
            await self._ask(decode, decode_body(fields, handover, ask_usage=False), self._limit_s)

    async def _release(self, messenger: Pod, offer: msgspec.Raw) -> None:
        """So that the decode pod need not keep its blocks."""
        with contextlib.suppress(PodFault):
            await self._ask(messenger, release_body(offer), self._limit_s)

    async def _ask(self, pod: Pod, body: bytes, limit_s: float) -> bytes:
        request_id = f"ppd-doctor-{secrets.token_hex(8)}"
        headers = names.to_pod([("Content-Type", "application/json")], request_id, None)
        answer = await self._parts.client.call("POST", pod.url, TARGET, headers, body, limit_s)
        try:
            text = await answer.read(limit_s)
        finally:
            answer.close()
        if answer.status != 200:
            raise PodFault("status", str(answer.status))
        return text


def pairs_to_try(pods: Sequence[Pod], most: int) -> list[tuple[Pod, Pod]]:
    """Pairs of pods that share a model, at most so many: first every pod once, then the others."""
    prefills = [pod for pod in pods if pod.role is Role.PREFILL]
    decodes = [pod for pod in pods if pod.role is Role.DECODE]
    size = max(len(prefills), len(decodes))
    ordered: dict[tuple[str, str], tuple[Pod, Pod]] = {}
    for shift in range(size if prefills and decodes else 0):
        for number in range(size):
            pair = prefills[number % len(prefills)], decodes[(number + shift) % len(decodes)]
            ordered.setdefault((pair[0].url, pair[1].url), pair)
    return [pair for pair in ordered.values() if pair[0].shares_model(pair[1])][:most]
