"""The table of the admin API. Requests are served from it, and the OpenAPI document is printed from it.

Rule of this room: one row per call; what a row does not say, a call cannot do.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from gateway.ops.admin import alarms, drift, flow, handlers, heatmap, limits
from gateway.ops.admin.handlers import Call, Control
from gateway.ops.admin.schemas import (
    Alarms,
    CanaryShown,
    ConfigShown,
    ConversationShown,
    Decisions,
    DecisionsQuery,
    Done,
    Flow,
    Health,
    Heatmap,
    HeatmapQuery,
    NewCanary,
    NewPod,
    NewWeights,
    Nothing,
    Pods,
    PodUrl,
    RemovePod,
    Residency,
    TableShown,
    WeightsShown,
)

Handler = Callable[[Control, Call], Awaitable[Any]]


class Reach(enum.Enum):
    """Which workers a call goes to. ONE: any. ALL: each makes the change. MERGED: each tells its part.
    FIRST: the first that knows."""

    ONE = enum.auto()
    ALL = enum.auto()
    MERGED = enum.auto()
    FIRST = enum.auto()


@dataclass(frozen=True, slots=True)
class Route:
    """One row. errors: statuses besides 400 and 401 that it may answer with. merge: makes one of the
    workers' answers, given the query. streams: the query may ask for events."""

    method: str
    path: str
    name: str
    summary: str
    handler: Handler
    answer: type
    query: type = Nothing
    body: type | None = None
    status: int = 200
    errors: tuple[int, ...] = ()
    reach: Reach = Reach.ONE
    merge: Callable[[list[Any], Any], Any] | None = None
    streams: bool = False


def _merged_pods(parts: list[Pods], _: Any) -> Pods:
    """Requests and tokens of all workers; the rest is what the first of them sees."""
    first = parts[0]
    for other in parts[1:]:
        theirs = {pod.url: pod for pod in other.pods}
        for pod in first.pods:
            if (same := theirs.get(pod.url)) is not None:
                pod.in_flight += same.in_flight
                pod.load_tokens += same.load_tokens
    return first


def _merged_health(parts: list[Health], _: Any) -> Health:
    first = parts[0]
    first.in_flight = sum(part.in_flight for part in parts)
    first.conversations = sum(part.conversations for part in parts)
    return first


def _merged_decisions(parts: list[Decisions], query: DecisionsQuery) -> Decisions:
    found = sorted((each for part in parts for each in part.decisions), key=lambda each: each.time, reverse=True)
    return Decisions(found[: query.limit])


def _merged_canary(parts: list[CanaryShown], _: Any) -> CanaryShown:
    """Every worker has a guard and samples of its own: of each test the one closest to an alarm is shown."""
    first = parts[0]
    first.stops = sum(part.stops for part in parts)
    for part in parts[1:]:
        for route, count in part.shadowed.items():
            first.shadowed[route] = first.shadowed.get(route, 0) + count
    by_name = [test for part in parts for test in part.tests]
    names = dict.fromkeys(test.name for test in by_name)
    first.tests = [min((test for test in by_name if test.name == name), key=lambda test: test.p) for name in names]
    return first


# fmt: off
ROUTES = (
    Route("GET", "/api/v1/health", "health", "How the gateway is", handlers.health, Health,
          reach=Reach.MERGED, merge=_merged_health),
    Route("GET", "/api/v1/pods", "pods", "All pods as the gateway sees them", handlers.pods, Pods,
          reach=Reach.MERGED, merge=_merged_pods),
    Route("POST", "/api/v1/pods", "add_pod", "Add a pod", handlers.add_pod, Done, body=NewPod, status=201,
          errors=(409,), reach=Reach.ALL),
    Route("DELETE", "/api/v1/pods", "remove_pod", "Remove a pod", handlers.remove_pod, Done, query=RemovePod,
          errors=(404, 409), reach=Reach.ALL),
    Route("POST", "/api/v1/pods/drain", "drain_pod", "Send a pod nothing new", handlers.drain_pod, Done, body=PodUrl,
          errors=(404,), reach=Reach.ALL),
    Route("POST", "/api/v1/pods/undrain", "undrain_pod", "Send a pod traffic again", handlers.undrain_pod, Done,
          body=PodUrl, errors=(404,), reach=Reach.ALL),
    Route("GET", "/api/v1/residency", "residency", "What is known of the pods' caches", handlers.residency, Residency),
    Route("GET", "/api/v1/table", "table", "The table in use", handlers.table, TableShown, errors=(409,)),
    Route("POST", "/api/v1/table/reload", "reload_table", "Read the table again", handlers.reload_table, Done,
          errors=(409, 422), reach=Reach.ALL),
    Route("GET", "/api/v1/table/heatmap", "table_heatmap", "S over the table, and the traffic on it",
          handlers.table_heatmap, Heatmap, query=HeatmapQuery, errors=(409,), reach=Reach.MERGED,
          merge=heatmap.merged),
    Route("GET", "/api/v1/weights", "weights", "The weights in use", handlers.weights, WeightsShown),
    Route("PUT", "/api/v1/weights", "set_weights", "Use other weights", handlers.set_weights, WeightsShown,
          body=NewWeights, reach=Reach.ALL),
    Route("GET", "/api/v1/canary", "canary", "The canary and its guard", handlers.canary, CanaryShown,
          reach=Reach.MERGED, merge=_merged_canary),
    Route("PUT", "/api/v1/canary", "set_canary", "Set its percentage, turn it on or off", handlers.set_canary,
          CanaryShown, body=NewCanary),
    Route("GET", "/api/v1/conversations/{id}", "conversation", "One conversation, without its text",
          handlers.conversation, ConversationShown, errors=(404,), reach=Reach.FIRST),
    Route("GET", "/api/v1/decisions", "decisions", "The last requests and why they went where they went",
          handlers.decisions, Decisions, query=DecisionsQuery, reach=Reach.MERGED, merge=_merged_decisions,
          streams=True, errors=(429,)),
    Route("GET", "/api/v1/decisions/{request_id}", "decisions_of", "The decisions of one request id",
          handlers.decisions_of, Decisions, errors=(404,), reach=Reach.FIRST),
    Route("GET", "/api/v1/flow", "flow", "Tokens per second from P to D, and each pod's load", handlers.show_flow,
          Flow, reach=Reach.MERGED, merge=flow.merged),
    Route("GET", "/api/v1/alarms", "alarms", "What somebody should know now, the worst first", handlers.show_alarms,
          Alarms, reach=Reach.MERGED, merge=alarms.merged),
    Route("GET", "/api/v1/slo", "slo", "The targets, and what is done about them", handlers.show_slo,
          limits.SloShown, reach=Reach.MERGED, merge=limits.merged_slo),
    Route("GET", "/api/v1/admission", "admission", "Who waits, who was refused", handlers.show_admission,
          limits.AdmissionShown, reach=Reach.MERGED, merge=limits.merged_admission),
    Route("GET", "/api/v1/drift", "drift", "The table's word against what is seen", handlers.show_drift,
          drift.DriftShown, reach=Reach.MERGED, merge=drift.merged_drift),
    Route("GET", "/api/v1/config", "config", "The settings in use, without secrets", handlers.config, ConfigShown),
)
# fmt: on
BY_NAME = {route.name: route for route in ROUTES}
