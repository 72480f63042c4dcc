"""Real pods' answers into a profile.

Rule of this room: what a question costs on the engine model is written down once, as a row of coefficients of the
unknown numbers, and must be what `loadtest.engine.core` would take on idle pods.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.engine.profile import CacheSize, Profile, RequestCosts, SchedulerLimits, StepCosts, TransferCosts
from loadtest.fit.regression import Fitted, fit
from loadtest.fit.sweeps import Answer, Kind, Question

UNKNOWN = (
    "step.fixed_s",
    "step.prefill_token_s",
    "step.attended_token_s",
    "step.decode_sequence_s",
    "step.decode_context_token_s",
    "step.attended_pair_s",
    "request.fixed_s",
    "request.prompt_token_s",
    "transfer.handover_s",
    "transfer.token_s",
)
"""The last is 1 / bandwidth, per token; a fit that holds it at 0 could not see it, and gives `BANDWIDTH_UNSEEN`."""

BANDWIDTH_UNSEEN = 1e11


@dataclass(frozen=True, slots=True)
class Limits:
    """What a pod was started with, and so is not fitted."""

    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    block_size: int
    num_blocks: int
    bytes_per_token: int


@dataclass(frozen=True, slots=True)
class PodFit:
    """A profile and how well it gives the answers back. answers[i] belongs to fitted.residuals[i]."""

    profile: Profile
    fitted: Fitted
    answers: tuple[Answer, ...]

    def median_error(self, kind: Kind) -> float:
        """Of one kind of question."""
        errors = [
            abs(residual)
            for answer, residual in zip(self.answers, self.fitted.residuals, strict=True)
            if answer.question.kind == kind
        ]
        return float(statistics.median(errors))


def fit_pods(name: str, answers: Sequence[Answer], limits: Limits) -> PodFit:
    """Raises ValueError when the answers cannot set the numbers."""
    found = fit([row(answer, limits) for answer in answers], [answer.seconds for answer in answers])
    value = dict(zip(UNKNOWN, (float(number) for number in found.values), strict=True))
    token_s = value["transfer.token_s"]
    profile = Profile(
        name=name,
        max_model_len=limits.max_model_len,
        step=StepCosts(*(value[key] for key in UNKNOWN if key.startswith("step."))),
        request=RequestCosts(value["request.fixed_s"], value["request.prompt_token_s"]),
        scheduler=SchedulerLimits(limits.max_num_batched_tokens, limits.max_num_seqs),
        cache=CacheSize(limits.block_size, limits.num_blocks, limits.bytes_per_token),
        transfer=TransferCosts(
            limits.bytes_per_token / token_s if token_s else BANDWIDTH_UNSEEN, 0.0, value["transfer.handover_s"]
        ),
    )
    return PodFit(profile, found, tuple(answers))


def row(answer: Answer, limits: Limits) -> list[float]:
    """The coefficients of `UNKNOWN` in the time of one answer."""
    question = answer.question
    if question.kind == "decode":
        return [1.0, 0.0, 0.0, question.batch, question.batch * answer.context, 0.0, 0.0, 0.0, 0.0, 0.0]
    cost = _alone(question, round(answer.context), limits)
    if question.kind == "handover":
        # D computes the last token once the rest has come: a step of one sequence that decodes, on the whole prompt.
        last, moved = question.tokens - 1.0, _moved(question.tokens, limits)
        second = [1.0, 0.0, 0.0, 1.0, last, 0.0, 1.0, question.tokens, 1.0, moved]
        return [first + more for first, more in zip(cost, second, strict=True)]
    return cost


def _alone(question: Question, cached: int, limits: Limits) -> list[float]:
    """The prompt on one idle pod: the host, then one step per chunk."""
    prompt = question.tokens + question.context
    steps, prefill, attended, pairs = 0, 0, 0, 0
    done = cached
    while done < prompt:
        chunk = min(prompt - done, limits.max_num_batched_tokens)
        steps, prefill, attended = steps + 1, prefill + chunk, attended + done
        pairs += chunk * done + chunk * (chunk + 1) // 2
        done += chunk
    return [steps, prefill, attended, 0.0, 0.0, pairs, 1.0, prompt, 0.0, 0.0]


def _moved(tokens: int, limits: Limits) -> int:
    """Tokens that cross the wire: whole blocks."""
    return -(-tokens // limits.block_size) * limits.block_size
