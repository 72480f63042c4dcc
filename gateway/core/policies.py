"""The policies: for a turn whose KV lies on a decode pod, through P again or straight to that pod?

Rule of this room: one small class per policy behind one protocol, registered by name. A policy sees a turn as
numbers and says a route and why; it never sees pods' addresses, bodies or clocks. This is the place to change
how the gateway decides.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Route(enum.StrEnum):
    """How a request is carried out."""

    PD = "pd"
    LOCAL = "local"
    REPLICA = "replica"


@dataclass(frozen=True, slots=True)
class TurnView:
    """What a policy may know of a turn.

    turn: 2 or more.
    prompt_tokens: of the whole prompt, estimated.
    resident_tokens: of it, expected in the cache of the conversation's decode pod.
    """

    turn: int
    prompt_tokens: int
    resident_tokens: int


@dataclass(frozen=True, slots=True)
class Choice:
    """A policy's word on one turn: PD or LOCAL, and a reason that a person can read."""

    route: Route
    reason: str


class Policy(Protocol):
    """Chooses the route of turn 2 and later."""

    name: str

    def choose(self, view: TurnView) -> Choice:
        """PD or LOCAL for a turn whose decode pod is up and holds `view.resident_tokens` of its context."""


class AlwaysPrefill:
    """x = 0, plain disaggregation: every turn goes P → D. D pulls only the blocks it lacks."""

    name = "pd"

    def choose(self, view: TurnView) -> Choice:
        return Choice(Route.PD, f"turn {view.turn}: policy pd sends every turn through a prefill pod")


class AlwaysLocal:
    """x = 1: every later turn is an append-prefill on the decode pod that holds the conversation."""

    name = "local"

    def choose(self, view: TurnView) -> Choice:
        return Choice(
            Route.LOCAL, f"turn {view.turn}: {view.resident_tokens} of about {view.prompt_tokens} tokens are on D"
        )


POLICIES: dict[str, Callable[[], Policy]] = {"pd": AlwaysPrefill, "local": AlwaysLocal}
"""Policies that can be chosen today, by the name the operator gives."""

PLANNED = {"ppd": "needs a lookup table, and this version has none yet; use pd or local"}
"""Names that are promised, with the reason why they are refused."""
