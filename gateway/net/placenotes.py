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
    """One request's notes. key: its conversation's. shared_tokens: of its prompt that the conversation had before;
    nothing is expected of a prompt that shares none."""

    def __init__(self, parts: Parts, record: RequestRecord, key: bytes, shared_tokens: int) -> None:
        self._fleet = parts.fleet
        self._residency = parts.residency
        self._record = record
        self._key = key
        self._shared_tokens = shared_tokens
        self._expected: dict[str, Expectation] = {}

    def expect(self, plan: Plan) -> None:
        """A plan is about to be carried out."""
        self._record.expected_tokens = plan.resident_tokens
        if not self._shared_tokens:
            return
        answering, prefill = plan.answering, plan.prefill
        self._expected[answering.url] = self._residency.expect(answering, self._key)
        if prefill is not None:
            self._expected[prefill.url] = self._residency.expect(prefill, self._key)

    def wants_report(self, pod: Pod) -> bool:
        """True when this request is to tell of its prefix hits, and the pod's view is then ready for them."""
        if not self._residency.wants_report(pod, self._key):
            return False
        self._residency.expect_report(pod, self._key)
        return True

    def learn(self, plan: Plan, usage: Usage) -> None:
        """The request ended well.

        A readback tells nothing of P's own cache, and D's answer after a hand-over nothing of D's.
        """
        record, answering, prompt_tokens = self._record, plan.answering, usage.prompt_tokens
        if plan.prefill is None:
            cached = usage.cached_tokens
            record.avoided_tokens = max(0, prompt_tokens - cached)
            record.residency = self._compare(answering, prompt_tokens, cached)
        else:
            record.moved_tokens = prompt_tokens - self._was_on(answering, prompt_tokens)
        prefill = self._fleet.get(record.prefill)
        if prefill is not None:
            if record.readback_tokens is None:
                record.prefill_residency = self._compare(prefill, prompt_tokens, record.prefill_cached_tokens)
            self._residency.used(prefill, self._key, prompt_tokens)
        self._residency.used(answering, self._key, prompt_tokens + usage.output_tokens)

    def _was_on(self, pod: Pod, prompt_tokens: int) -> int:
        """Tokens of this prompt that a pod was expected to have, so that it had not to fetch them."""
        expected = self._expected.get(pod.url)
        if expected is None:
            return 0
        tokens = expected.ledger if expected.events is None else expected.events
        return min(tokens, self._shared_tokens, prompt_tokens)

    def _compare(self, pod: Pod, prompt_tokens: int, cached: int | None) -> Mapping[Source, Verdict]:
        expected = self._expected.get(pod.url)
        if cached is None or expected is None:
            return {}
        return self._residency.learn(pod, self._key, expected, self._shared_tokens, prompt_tokens, cached)
