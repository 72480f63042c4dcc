"""What one request expects of the pods' caches, and what it teaches about them afterwards.

Rule of this room: expectations are noted before a pod is asked; only a pod that prefilled by itself contradicts them.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.core.decide import Plan
from gateway.core.pods import Pod
from gateway.core.residency import Expectation, Source, Verdict
from gateway.net.parts import Parts
from gateway.net.records import RequestRecord
from gateway.wire.usage import Usage


class PlaceNotes:
    """One request's notes. `key` is its conversation's, set once that is known."""

    def __init__(self, parts: Parts, record: RequestRecord) -> None:
        self.key = b""
        self._parts = parts
        self._record = record
        self._expected: dict[str, Expectation] = {}

    def expect(self, plan: Plan) -> None:
        """A plan is about to be carried out."""
        for pod in (plan.answering, plan.prefill):
            if pod is not None:
                self._expected[pod.url] = self._parts.residency.expect(pod, self.key)
        self._record.expected_tokens = plan.resident_tokens

    def wants_report(self, pod: Pod) -> bool:
        """True when this request is to tell of its prefix hits, and the pod's view is then ready for them."""
        residency = self._parts.residency
        if not residency.wants_report(pod, self.key):
            return False
        residency.expect_report(pod, self.key)
        return True

    def learn(self, plan: Plan, shared_tokens: int, usage: Usage) -> None:
        """The request ended well.

        A readback tells nothing of P's own cache, and D's answer after a hand-over nothing of D's.
        """
        record = self._record
        if plan.prefill is None:
            record.avoided_tokens = max(0, usage.prompt_tokens - usage.cached_tokens)
            record.residency = self._compare(plan.answering, shared_tokens, usage, usage.cached_tokens)
        else:
            record.moved_tokens = usage.prompt_tokens - self._was_on(plan.answering, shared_tokens, usage.prompt_tokens)
        prefill = self._parts.fleet.get(record.prefill)
        if prefill is not None:
            if record.readback_tokens is None:
                cached = record.prefill_cached_tokens
                record.prefill_residency = self._compare(prefill, shared_tokens, usage, cached)
            self._parts.residency.used(prefill, self.key, usage.prompt_tokens)
        self._parts.residency.used(plan.answering, self.key, usage.prompt_tokens + usage.output_tokens)

    def _was_on(self, pod: Pod, shared_tokens: int, prompt_tokens: int) -> int:
        """Tokens of this prompt that a pod was expected to have, so that it had not to fetch them."""
        expected = self._expected.get(pod.url)
        if expected is None:
            return 0
        tokens = expected.ledger if expected.events is None else expected.events
        return min(tokens, shared_tokens, prompt_tokens)

    def _compare(self, pod: Pod, shared_tokens: int, usage: Usage, cached: int | None) -> Mapping[Source, Verdict]:
        expected = self._expected.get(pod.url)
        if cached is None or expected is None:
            return {}
        return self._parts.residency.learn(pod, self.key, expected, shared_tokens, usage.prompt_tokens, cached)
