"""Plans for the tests of decisions: one request, asked of one policy."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.core.conversations import Recognition
from gateway.core.decide import Plan, Request, decide
from gateway.core.pods import Fleet
from gateway.core.policies import AlwaysLocal, Choice, Policy, Route, TurnView
from gateway.core.residency import Residency
from tests.core.support import knowing

REQUEST = Request(prompt_tokens=1100)
WHOLE = Request(prompt_tokens=1100, whole="n")


@dataclass
class Asked:
    """A policy that says what it is told to and keeps what it was asked."""

    route: Route
    name: str = "asked"
    views: list[TurnView] = field(default_factory=list)

    def choose(self, view: TurnView) -> Choice:
        self.views.append(view)
        return Choice(self.route, "because")


def plan_of(
    recognition: Recognition,
    of: Fleet,
    policy: Policy | None = None,
    request: Request = REQUEST,
    residency: Residency | None = None,
) -> Plan:
    plan = decide(request, recognition, of, policy or AlwaysLocal(), residency or knowing(recognition, of))
    assert plan is not None
    return plan


def short(plan: Plan) -> tuple[str, str | None, str]:
    """(route, prefill pod, answering pod)."""
    return plan.route.value, None if plan.prefill is None else plan.prefill.url, plan.answering.url


def view(**changes: object) -> TurnView:
    """Of a later turn, as a policy gets it."""
    values: dict[str, object] = {
        "turn": 2,
        "prompt_tokens": 1064,
        "resident_tokens": 1024,
        "output_tokens": 32,
        "rate": 1.0,
        "assignment": "1P_3D",
        "key": b"k" * 16,
    }
    return TurnView(**{**values, **changes})  # type: ignore[arg-type]
