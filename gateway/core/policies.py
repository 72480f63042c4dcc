"""The policies: for a turn whose KV lies on a decode pod, through P again or straight to that pod?

Rule of this room: one small class per policy behind one protocol, registered by name. A policy sees a turn as
numbers and says a route and why; it never sees pods' addresses, bodies or clocks. This is the place to change
how the gateway decides.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from gateway.core.drift.monitor import Change, Drift
from gateway.core.load import Load
from gateway.core.reasons import ReasonClass
from gateway.core.weights import BALANCED, Weights
from lut.table import Arm, Cell, Score, TableSet, score


class Route(enum.StrEnum):
    """How a request is carried out."""

    PD = "pd"
    LOCAL = "local"
    READBACK = "readback"
    REPLICA = "replica"


ROUTES: dict[str, Route] = {route.value: route for route in Route}
"""By their words: a look-up takes a tenth of the time of `Route(word)`."""

_PD, _LOCAL, _READBACK = Route.PD, Route.LOCAL, Route.READBACK
_SCORE, _TIE, _DEGRADED, _EXPLORED = ReasonClass.SCORE, ReasonClass.TIE, ReasonClass.DEGRADED, ReasonClass.EXPLORED
"""The same for the policies: Python 3.11 takes ten times as long for a member of an enum as for a global."""


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
    load: what the turn would meet at these pods now, where the gateway looks at that.
    key: its conversation's.
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
    load: Load | None = None
    key: bytes = b""

    @property
    def new_tokens(self) -> int:
        """Tokens that are not resident and must be prefilled somewhere."""
        return max(1, self.prompt_tokens - self.resident_tokens)


class Choice(msgspec.Struct, frozen=True):
    """A policy's word on one turn: PD, LOCAL or (where the view allows it) READBACK, and a reason for people.

    reason_class: the same as one word. score: S, None where none was computed. ttft_s, tpot_s: what the table expects
    of that route, 0 for not known. context_tokens, rate, assignment: of the view. explored: the other route was better.
    """

    route: Route
    reason: str
    reason_class: ReasonClass = ReasonClass.POLICY
    score: float | None = None
    ttft_s: float = 0.0
    tpot_s: float = 0.0
    context_tokens: int = 0
    rate: float = 0.0
    assignment: str = ""
    explored: bool = False


class Seen(msgspec.Struct, frozen=True):
    """What a turn whose route a policy chose turned out to be. Seconds, None where it was not measured."""

    choice: Choice
    prompt_tokens: int
    output_tokens: int
    ttft_s: float | None
    tpot_s: float | None

    @property
    def point(self) -> tuple[int, int, int, float]:
        """Where it lies in a table, by what the pods counted."""
        context = self.choice.context_tokens
        return context, max(1, self.prompt_tokens - context), self.output_tokens, self.choice.rate


_SCORED = "%s: S=%+.2f (ttft %+.0f %%, tpot %+.0f %%)"
_CELL = "cell ctx=%g in=%g out=%g q=%g"
"""Every turn gets its reason in words, and so many numbers take half as long this way as in an f-string."""


class Policy(Protocol):
    """Chooses the route of turn 2 and later."""

    name: str

    def choose(self, view: TurnView) -> Choice:
        """The route of a turn whose decode pod is up and holds `view.resident_tokens` of its context."""


class AlwaysPrefill:
    """x = 0, plain disaggregation: every turn goes P → D. D pulls only the blocks it lacks."""

    name = "pd"

    def choose(self, view: TurnView) -> Choice:
        return Choice(_PD, f"turn {view.turn}: policy pd sends every turn through a prefill pod")


class AlwaysLocal:
    """x = 1: every later turn is an append-prefill on the decode pod that holds the conversation."""

    name = "local"

    def choose(self, view: TurnView) -> Choice:
        return Choice(_LOCAL, f"turn {view.turn}: {view.resident_tokens} of about {view.prompt_tokens} tokens are on D")


class AlwaysReadback:
    """Every later turn goes through P, which reads the history from D where it can: the third arm, for measuring."""

    name = "readback"

    def choose(self, view: TurnView) -> Choice:
        route = _READBACK if view.readback else _PD
        return Choice(route, f"turn {view.turn}: P reads back {view.resident_tokens} tokens" if view.readback else "pd")


@dataclass
class Threshold:
    """The fixed rule of other routers: local when at most `max_new_tokens` are not resident."""

    max_new_tokens: int
    name: str = "threshold"

    def choose(self, view: TurnView) -> Choice:
        route = _LOCAL if view.new_tokens <= self.max_new_tokens else _PD
        return Choice(route, f"{route}: {view.new_tokens} new tokens, the threshold is {self.max_new_tokens}")


@dataclass
class MeasuredTable:
    """PPD: the table measured on this cluster and the operator's weights decide (paper, section 2).

    tables: the set in use; may be replaced by another at any time.
    interpolate: blend the cells around the point instead of taking the nearest (the paper's rule).

    A set may have measured `readback` as well; that arm counts where the gateway can take that route.
    recent: the last turns decided, as (context, new, output tokens, rate), for whoever draws them on the table.
    drift: what is seen against what the table says, where that is watched.
    """

    tables: TableSet
    interpolate: bool = False
    name: str = "ppd"
    drift: Drift | None = None
    recent: deque[tuple[int, int, int, float]] = field(default_factory=lambda: deque(maxlen=2000), repr=False)

    def choose(self, view: TurnView) -> Choice:
        table, assignment, exact = self.tables.nearest_assignment(view.assignment)
        point = (view.resident_tokens, view.new_tokens, view.output_tokens, view.rate)
        self.recent.append(point)
        cell = table.interpolated(*point) if self.interpolate else table.nearest(*point)
        if cell.readback is not None and not view.readback:
            cell = cell._replace(readback=None)
        drift, remark = self.drift, ""
        last_route = view.last_route
        if drift is not None and drift.correcting:
            last_route = None  # it was chosen by the table, which is no longer believed
            raw = cell
            cell = drift.corrected(cell, assignment, table.place(*point))
            remark = _correction(raw, cell)
        if view.load is not None:
            cell = _loaded(cell, view.load)
            remark += f" load pd {1000 * cell.pd.ttft_mean:.0f} ms, local {1000 * cell.local.ttft_mean:.0f} ms"
        found = score(cell, view.weights.w_ttft, view.weights.w_tpot)
        route = ROUTES[found.route] if found.route is not None else _settle(found, last_route)
        explored = False
        if drift is not None and drift.exploring and found.degraded is None:
            other = _PD if route is not _PD else _LOCAL
            measured = drift.measured(other)
            if drift.explorer.wants(view.key, view.turn, found.s, measured):
                route, explored, remark = other, True, f"{remark} explores {other}"
        arm = _arm_of(cell, route)
        scored = _SCORED % (route, found.s, -100 * found.dttft, 100 * found.dtpot)
        place = f"π={assignment}" if exact else f"π={assignment} (nearest to {view.assignment})"
        return Choice(
            route,
            f"{scored}{_remark(found)}{remark} {_CELL % cell[3:]} {place}",
            _EXPLORED if explored else _class_of(found),
            found.s,
            arm.ttft_mean if arm is not None else 0.0,
            arm.tpot_mean if arm is not None else 0.0,
            view.resident_tokens,
            view.rate,
            view.assignment,
            explored,
        )

    def take(self, tables: TableSet) -> None:
        """Decide by another set from now on."""
        self.tables = tables
        if self.drift is not None:
            self.drift.table_changed()

    def learn(self, seen: Seen, now_s: float) -> list[Change]:
        """A turn ended; gives the alarms of drift that went on or off by it."""
        drift, choice = self.drift, seen.choice
        if drift is None:
            return []
        table, _, _ = self.tables.nearest_assignment(choice.assignment)
        point = seen.point
        cell = table.interpolated(*point) if self.interpolate else table.nearest(*point)
        arm = _arm_of(cell, choice.route)
        if arm is None or arm.degraded:
            return []
        return drift.observe(table, choice.route.value, arm, table.place(*point), seen.ttft_s, seen.tpot_s, now_s)


@dataclass
class Queue:
    """The estimate of other routers of disaggregated pods: the first token by whichever route it comes sooner.

    Tokens ahead and the pods' measured paces decide, no table and no weights; the time per token is not looked at.
    """

    name: str = "queue"

    def choose(self, view: TurnView) -> Choice:
        load = view.load
        if load is None or load.pd_s is None:
            return Choice(_LOCAL, f"local: turn {view.turn}, no prefill pod to compare with")
        route = _LOCAL if load.local_s <= load.pd_s else _PD
        reason = f"{route}: first token in {1000 * load.local_s:.0f} ms on D, {1000 * load.pd_s:.0f} ms through P"
        ttft_s = load.local_s if route is _LOCAL else load.pd_s
        return Choice(route, reason, ttft_s=ttft_s, tpot_s=load.tpot_s)


def _loaded(cell: Cell, load: Load) -> Cell:
    """The cell as it is for these pods now. The decode pod is the same by every route, and so is its batch."""
    pd, local, readback = cell.pd, cell.local, cell.readback
    through_p_s = load.ttft(pd.ttft_mean, local=False)
    pd = pd._replace(ttft_mean=through_p_s, tpot_mean=load.tpot(pd.tpot_mean))
    local = local._replace(ttft_mean=load.ttft(local.ttft_mean, local=True), tpot_mean=load.tpot(local.tpot_mean))
    if readback is not None:
        readback = readback._replace(
            ttft_mean=load.ttft(readback.ttft_mean, local=False), tpot_mean=load.tpot(readback.tpot_mean)
        )
    return cell._replace(pd=pd, local=local, readback=readback)


def _correction(before: Cell, after: Cell) -> str:
    """The factors of a correction, for people."""

    def times(old: Arm, new: Arm) -> str:
        ttft = new.ttft_mean / old.ttft_mean if old.ttft_mean > 0 else 1.0
        tpot = new.tpot_mean / old.tpot_mean if old.tpot_mean > 0 else 1.0
        return f"×{ttft:.2f}/×{tpot:.2f}"

    return f" drift pd {times(before.pd, after.pd)} local {times(before.local, after.local)}"


def _settle(found: Score, last_route: Route | None) -> Route:
    """A tie keeps the conversation's last route, where that is given; noise must not move it back and forth."""
    return last_route if last_route is not None and last_route in found.tied else ROUTES[found.leader]


def _class_of(found: Score) -> ReasonClass:
    if found.degraded is not None:
        return _DEGRADED
    return _TIE if found.tie else _SCORE


def _arm_of(cell: Cell, route: Route) -> Arm | None:
    """What a cell says of a route; None where that was not measured."""
    return cell.local if route is _LOCAL else cell.readback if route is _READBACK else cell.pd


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
    drift: Drift | None = None


def _measured(options: PolicyOptions) -> Policy:
    if options.tables is None:
        raise ValueError("policy ppd needs a table set")
    return MeasuredTable(options.tables, options.interpolate, drift=options.drift)


POLICIES: dict[str, Callable[[PolicyOptions], Policy]] = {
    "pd": lambda _: AlwaysPrefill(),
    "local": lambda _: AlwaysLocal(),
    "readback": lambda _: AlwaysReadback(),
    "threshold": lambda options: Threshold(options.threshold_tokens),
    "queue": lambda _: Queue(),
    "ppd": _measured,
}
"""All policies, by the name the operator gives."""
