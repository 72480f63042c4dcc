"""Does a pod keep the KV of a prompt, and does it say so? Asked, not believed.

Rule of this room: the same prompt twice, under a salt of its own, so that it finds nothing of anybody else's and nobody
finds anything of it. Only a lasting reason, such as a missing flag, takes the straight path from a pod; what may pass
is tried again later.
"""

from __future__ import annotations

import asyncio
import enum
import random
import secrets
import time
from dataclasses import dataclass

import msgspec

from gateway.core.pods import Pod, PodFacts, Role
from gateway.net import headers as names
from gateway.net.parts import Parts
from gateway.net.upstream import PodFault
from gateway.wire.usage import Usage, UsageObject, usage_of

TARGET = "/v1/completions"
BLOCKS = 3
"""Whole blocks in the prompt: vLLM always computes the last token anew, so the third may be lost to that."""

DEFAULT_BLOCK_SIZE = 128
MISSES_BELIEVED = 3
"""A cache may be so full that a prompt is gone before it is asked again; this often in a row is no bad luck."""

_TOKEN_IDS = range(20, 120)
"""Ids that every vocabulary has and none uses for anything special."""


class Proof(enum.StrEnum):
    """What a self-test found. OK; DETAILS_OFF: the pod does not tell cached tokens; CACHING_OFF: it keeps nothing;
    NOTHING_KEPT: it should have, and did not this time; BUSY: requests wait there, it was not asked; FAILED: it did
    not answer."""

    OK = "ok"
    DETAILS_OFF = "details_off"
    CACHING_OFF = "caching_off"
    NOTHING_KEPT = "nothing_kept"
    BUSY = "busy"
    FAILED = "failed"

    @property
    def lasting(self) -> bool:
        """True when only a new process will be different."""
        return self in (Proof.OK, Proof.DETAILS_OFF, Proof.CACHING_OFF)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a self-test found, and what to do about it in the operator's words."""

    proof: Proof
    reason: str


def judge(first: Usage | None, second: Usage | None, facts: PodFacts) -> Verdict:
    """Read the usage of both answers."""
    says_off = facts.prefix_caching is False
    details = second.prompt_tokens_details if second is not None else None
    flags = ["--enable-prefix-caching"] * says_off + ["--enable-prompt-tokens-details"] * (details is None)
    if says_off:
        return Verdict(Proof.CACHING_OFF, f"prefix caching is off: add {' '.join(flags)} to the pod")
    if details is None or first is None or second is None:
        return Verdict(Proof.DETAILS_OFF, f"cached tokens are not told: add {' '.join(flags)} to the pod")
    if second.cached_tokens:
        return Verdict(Proof.OK, f"{second.cached_tokens} of {second.prompt_tokens} tokens were kept")
    if facts.prefix_caching is None:
        return Verdict(Proof.NOTHING_KEPT, "nothing was kept: is --enable-prefix-caching missing?")
    return Verdict(
        Proof.NOTHING_KEPT, "nothing was kept although prefix caching is on: is the KV cache too small or too full?"
    )


class _Answer(msgspec.Struct):
    usage: UsageObject | None = None


@dataclass
class _State:
    """Of one pod's present process.

    epoch: which. done: the verdict will stay. tries, misses: failures in a row, and those where nothing was kept.
    due_at: do not try before.
    """

    epoch: int
    done: bool = False
    tries: int = 0
    misses: int = 0
    due_at: float = 0.0


class SelfTests:
    """Tests pods beside the traffic, each once per process and again where the outcome may pass.

    first_retry_s doubles with every failure, up to last_retry_s.
    """

    def __init__(self, parts: Parts, first_retry_s: float = 1.0, last_retry_s: float = 60.0) -> None:
        self._parts = parts
        self._states: dict[str, _State] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self.first_retry_s = first_retry_s
        self.last_retry_s = last_retry_s

    def consider(self, pod: Pod) -> asyncio.Task[None] | None:
        """Begin to test this pod, which is up, if that is due. Gives the test that is under way, if one is."""
        if not self._parts.settings.selftest or pod.role is Role.PREFILL:
            return None
        running = self._running.get(pod.url)
        if running is not None:
            return running
        state = self._states.get(pod.url)
        if state is None or state.epoch != pod.epoch:
            state = self._states[pod.url] = _State(pod.epoch)
        if state.done or time.monotonic() < state.due_at:
            return None
        task = self._running[pod.url] = asyncio.ensure_future(self._test(pod, state))
        task.add_done_callback(lambda ended: self._over(pod, ended))
        return task

    def drop(self, pod: Pod) -> None:
        """A pod leaves the fleet."""
        task = self._running.pop(pod.url, None)
        if task is not None:
            task.cancel()
        self._states.pop(pod.url, None)

    def _over(self, pod: Pod, task: asyncio.Task[None]) -> None:
        if self._running.get(pod.url) is task:
            del self._running[pod.url]

    async def stop(self) -> None:
        """End all tests."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _test(self, pod: Pod, state: _State) -> None:
        try:
            verdict = await self.ask(pod)
        except PodFault as fault:
            if fault.word != "status":
                self._parts.notice(pod, fault)
            verdict = Verdict(Proof.FAILED, f"the self-test was not answered ({fault})")
        if pod.epoch != state.epoch:
            return
        state.done = verdict.proof.lasting
        if not state.done:
            wait_s = min(self.last_retry_s, self.first_retry_s * 2.0 ** min(state.tries, 30))
            state.tries += 1
            state.due_at = time.monotonic() + wait_s * random.uniform(0.9, 1.1)
        state.misses += verdict.proof is Proof.NOTHING_KEPT
        self._publish(pod, verdict, state.misses)

    def _publish(self, pod: Pod, verdict: Verdict, misses: int) -> None:
        settings = self._parts.settings
        forgiven = verdict.proof is Proof.DETAILS_OFF and settings.direct_without_proof
        if verdict.proof is Proof.OK or forgiven:
            pod.direct_off = None
        elif verdict.proof.lasting or misses >= MISSES_BELIEVED:
            pod.direct_off = verdict.reason
        shown = f"{verdict.proof}: {verdict.reason}" + ("; direct_without_proof is set" if forgiven else "")
        changed = shown != pod.proof or misses == MISSES_BELIEVED
        pod.proof = shown
        if changed and verdict.proof is not Proof.BUSY:
            self._parts.observer.pod_tested(pod.url, pod.role, verdict.proof, pod.direct, verdict.reason)

    async def ask(self, pod: Pod) -> Verdict:
        """Both requests. Raises PodFault."""
        facts = pod.facts
        if not facts.models:
            return Verdict(Proof.FAILED, "its /v1/models names no model (does the pod want an API key?)")
        if facts.waiting:
            return Verdict(Proof.BUSY, f"{facts.waiting} requests wait at the pod")
        body = msgspec.json.encode(
            {
                "model": facts.models[0],
                "prompt": random.choices(_TOKEN_IDS, k=_prompt_tokens(facts)),
                "max_tokens": 1,
                "temperature": 0,
                "cache_salt": secrets.token_hex(16),
            }
        )
        first = await self._usage(pod, body)
        return judge(first, await self._usage(pod, body), facts)

    async def _usage(self, pod: Pod, body: bytes) -> Usage | None:
        limit_s = self._parts.settings.timeouts.first_byte_s
        headers = [("Content-Type", "application/json"), (names.REQUEST_ID, f"ppd-selftest-{secrets.token_hex(8)}")]
        answer = await self._parts.client.call("POST", pod.url, TARGET, headers, body, limit_s)
        try:
            text = await answer.read(limit_s)
        finally:
            answer.close()
        if answer.status != 200:
            raise PodFault("status", str(answer.status))
        try:
            return usage_of(msgspec.json.decode(text, type=_Answer).usage)
        except msgspec.DecodeError:
            raise PodFault("malformed", "the answer is no completion") from None


def _prompt_tokens(facts: PodFacts) -> int:
    wanted = BLOCKS * (facts.block_size or DEFAULT_BLOCK_SIZE) + 1
    return min(wanted, facts.max_model_len - 1) if facts.max_model_len > 1 else wanted
