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

import msgspec

from gateway.core.weights import BALANCED, Weights
from lut.table import Score, TableSet, score


class Route(enum.StrEnum):
    """How a request is carried out."""

    PD = "pd"
    LOCAL = "local"
    READBACK = "readback"
    REPLICA = "replica"


class TurnView(msgspec.Struct, frozen=True):
    """What a policy may know of a turn. Tokens of the future are estimates.

    turn: 2 or more.
    prompt_tokens: of the whole prompt.
    resident_tokens: of it, expected in the cache of the conversation's decode pod.
    output_tokens: that the answer will have.
    rate: turns per second at the gateway, now.
    assignment: the pods that are up, as `1P_3D`.
    last_route: of the conversation's last turn, None before the first.
    readback: whether P could read the history back from D.
    """

    turn: int
    prompt_tokens: int
    resident_tokens: int
    output_tokens: int = 1
    rate: float = 0.0
    assignment: str = ""
    last_route: Route | None = None
    weights: Weights = BALANCED
    readback: bool = False

    @property
    def new_tokens(self) -> int:
        """Tokens that are not resident and must be prefilled somewhere."""
        return max(1, self.prompt_tokens - self.resident_tokens)


class Choice(msgspec.Struct, frozen=True):
    """A policy's word on one turn: PD, LOCAL or (where the view allows it) READBACK, and a reason for people."""

    route: Route
    reason: str


class Policy(Protocol):
    """Chooses the route of turn 2 and later."""

    name: str

    def choose(self, view: TurnView) -> Choice:
        """The route of a turn whose decode pod is up and holds `view.resident_tokens` of its context."""


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


class AlwaysReadback:
    """Every later turn goes through P, which reads the history from D where it can: the third arm, for measuring."""

    name = "readback"

    def choose(self, view: TurnView) -> Choice:
        route = Route.READBACK if view.readback else Route.PD
        return Choice(route, f"turn {view.turn}: P reads back {view.resident_tokens} tokens" if view.readback else "pd")


@dataclass
class Threshold:
    """The fixed rule of other routers: local when at most `max_new_tokens` are not resident."""

    max_new_tokens: int
    name: str = "threshold"

    def choose(self, view: TurnView) -> Choice:
        route = Route.LOCAL if view.new_tokens <= self.max_new_tokens else Route.PD
        return Choice(route, f"{route}: {view.new_tokens} new tokens, the threshold is {self.max_new_tokens}")


@dataclass
class MeasuredTable:
    """PPD: the table measured on this cluster and the operator's weights decide (paper, section 2).

    tables: the set in use; may be replaced by another at any time.
    interpolate: blend the cells around the point instead of taking the nearest (the paper's rule).

    A set may have measured `readback` as well; that arm counts where the gateway can take that route.
    """

    tables: TableSet
    interpolate: bool = False
    name: str = "ppd"

    def choose(self, view: TurnView) -> Choice:
        table, assignment, exact = self.tables.nearest_assignment(view.assignment)
        lookup = table.interpolated if self.interpolate else table.nearest
        cell = lookup(view.resident_tokens, view.new_tokens, view.output_tokens, view.rate)
        if cell.readback is not None and not view.readback:
            cell = cell._replace(readback=None)
        found = score(cell, view.weights.w_ttft, view.weights.w_tpot)
        route = Route(found.route) if found.route is not None else _settle(found, view.last_route)
        place = f"π={assignment}" if exact else f"π={assignment} (nearest to {view.assignment})"
        return Choice(
            route,
            f"{route}: S={found.s:+.2f} (ttft {-100 * found.dttft:+.0f} %, tpot {100 * found.dtpot:+.0f} %)"
            f"{_remark(found)} cell ctx={cell.context_tokens:g} in={cell.new_tokens:g} out={cell.output_tokens:g}"
            f" q={cell.rate:g} {place}",
        )


def _settle(found: Score, last_route: Route | None) -> Route:
    """A tie keeps the conversation's last route; noise must not move it back and forth."""
    return last_route if last_route is not None and last_route in found.tied else Route(found.leader)


def _remark(found: Score) -> str:
    if found.degraded is not None:
        return f" degraded: {found.degraded}"
    return f" tie within ±{found.noise:.2f}" if found.tie else ""


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """What the operator said that a policy may need."""

    threshold_tokens: int = 512
    tables: TableSet | None = None
    interpolate: bool = False


def _measured(options: PolicyOptions) -> Policy:
    if options.tables is None:
        raise ValueError("policy ppd needs a table set")
    return MeasuredTable(options.tables, options.interpolate)


POLICIES: dict[str, Callable[[PolicyOptions], Policy]] = {
    "pd": lambda _: AlwaysPrefill(),
    "local": lambda _: AlwaysLocal(),
    "readback": lambda _: AlwaysReadback(),
    "threshold": lambda options: Threshold(options.threshold_tokens),
    "ppd": _measured,
}
"""All policies, by the name the operator gives."""
