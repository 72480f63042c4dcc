"""What the answering pod's answer taught, once it is whole.

Rule of this room: nothing here waits, and nothing is kept: who wants it takes it.
"""

from __future__ import annotations

import msgspec

from gateway.core.conversations import TurnResult
from gateway.core.decide import Plan
from gateway.core.policies import Route
from gateway.net.intake import Intake
from gateway.wire.usage import Usage

_LOCAL, _PD = Route.LOCAL, Route.PD
"""Python 3.11 takes ten times as long for a member of an enum as for a global."""


class Learned(msgspec.Struct, frozen=True):
    """Its usage (None if it did not say), the head of the reply, whether some of it was reasoning, and the id by which
    a later request may go on from it."""

    usage: Usage | None
    reply_head: bytes | None
    reasoned: bool
    response_id: str | None = None

    def result(self, plan: Plan, intake: Intake) -> TurnResult:
        """The turn, as its conversation is to remember it."""
        usage, answering = self.usage, plan.answering
        return TurnResult(
            prefill=None if plan.prefill is None else plan.prefill.url,
            decode=answering.url,
            epoch=answering.epoch,
            route=plan.route if plan.route is _LOCAL else _PD,
            prompt_tokens=intake.request.prompt_tokens if usage is None else usage.prompt_tokens,
            output_tokens=0 if usage is None else usage.output_tokens,
            reply_head=self.reply_head,
            prompt_bytes=intake.prompt_bytes,
            reasoned=self.reasoned,
        )
