"""Which side of the canary a request is on, and what that means for its plan.

Rule of this room: the baseline gets what the plain PD proxy would give it: P then D at every turn, nothing straight to
D, nothing read back. Whatever else the gateway does (placement, fallbacks, whole requests) is the same on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from gateway.core.decide import Plan, decide
from gateway.core.pods import Fleet
from gateway.core.policies import AlwaysPrefill, Policy
from gateway.net.intake import Intake
from gateway.net.outside import OutsideProxy
from gateway.net.parts import Parts
from gateway.net.records import Arm, RequestRecord

BASELINE: Policy = AlwaysPrefill()

_CANARY = Arm.CANARY
"""Python 3.11 takes ten times as long for a member of an enum as for a global."""


@dataclass(frozen=True, slots=True)
class Trial:
    """How one request is decided. shadow: by the policy too, for the record."""

    arm: Arm
    shadow: bool = False

    def decide(self, parts: Parts, intake: Intake, fleet: Fleet, record: RequestRecord) -> Plan | None:
        """Plan the request; None when no pod is up that could answer."""
        request, recognition = intake.request, intake.recognition
        if self.arm is _CANARY:
            return decide(request, recognition, fleet, parts.policy, parts.residency)
        if self.shadow and record.shadow_route is None:
            wanted = decide(request, recognition, fleet, parts.policy, parts.residency)
            if wanted is not None:
                record.shadow_route, record.shadow_reason = wanted.route, wanted.reason
                record.score = None if wanted.choice is None else wanted.choice.score
                parts.canary.note_shadow(wanted.route)
        plain = msgspec.structs.replace(request, readback=False)
        return decide(plain, recognition, fleet, BASELINE, parts.residency)


ALL_CANARY = Trial(Arm.CANARY)
_BASELINE = Trial(Arm.BASELINE)
_SHADOW = Trial(Arm.BASELINE, shadow=True)


def trial_of(parts: Parts, key: bytes) -> Trial:
    """The side of a conversation."""
    canary = parts.canary
    if canary.takes_all:
        return ALL_CANARY
    if not canary.takes(key):
        return _BASELINE
    return _SHADOW if canary.shadow else ALL_CANARY


def goes_outside(proxy: OutsideProxy, intake: Intake, trial: Trial) -> bool:
    """True when the operator's own proxy is to answer.

    An answer that a request goes on from (`previous_response_id`) is where it was given: in the memory of a pod of
    ours, or behind the proxy.
    """
    keeper = intake.request.only
    if keeper is not None:
        return keeper == proxy.url
    return trial.arm is Arm.BASELINE
