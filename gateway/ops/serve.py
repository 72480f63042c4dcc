"""Build a gateway from a Config and run it until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.core.canary import Canary
from gateway.core.conversations import ConversationStore
from gateway.core.pods import Fleet, Pod, Role
from gateway.core.policies import POLICIES, MeasuredTable, PolicyOptions
from gateway.net.events import EventSubscriber
from gateway.net.gateway import Gateway, MakePage, where
from gateway.net.keys import Door
from gateway.net.outside import OutsideProxy
from gateway.net.parts import Parts
from gateway.net.records import Observer
from gateway.net.roster import Roster
from gateway.net.server import HttpServer
from gateway.net.tenancy import Tenancy
from gateway.net.upstream import PodClient
from gateway.ops import tls
from gateway.ops.administration import Administration
from gateway.ops.admission import load_tenants, take_targets, watch_tenants
from gateway.ops.canary import CanaryKeeper
from gateway.ops.config import Config
from gateway.ops.discovery.keeper import Discovery
from gateway.ops.drift import loads_of, measurements_of, told_of_tables, watch_drift
from gateway.ops.keys import load_keys, load_upstream_key, shared_of, watch_keys, watch_upstream_key
from gateway.ops.logs import MAIN, AccessWriter, LogObserver
from gateway.ops.metrics import Metrics
from gateway.ops.observers import Observers
from gateway.ops.pods_page import pods_page
from gateway.ops.residency_page import residency_page
from gateway.ops.scrape import Siblings
from gateway.ops.state import Keeping, keep, shared_quotas
from gateway.ops.tables import ModelCheck, TableKeeper, open_checked
from gateway.ops.watch import WatchedFiles
from gateway.ops.workers import WorkerSeat
from gateway.version import VERSION
from gateway.wire.kv_events import EventSource

if TYPE_CHECKING:
    from gateway.ops.tracing import Tracing


@dataclass(frozen=True, slots=True)
class Running:
    """A gateway that listens."""

    gateway: Gateway
    server: HttpServer
    url: str
    metrics: Metrics
    keeper: TableKeeper | None
    keeping: Keeping
    watched: list[WatchedFiles]
    roster: Roster
    discovery: Discovery
    administration: Administration

    def reload(self) -> None:
        """Read the configuration, the table and the watched files again (SIGHUP)."""
        self.administration.reload()
        for files in self.watched:
            files.reload()
        self.discovery.reload()
        if self.keeper is not None:
            self.keeper.reload()


@asynccontextmanager
async def running(
    config: Config,
    *observers: Observer,
    seat: WorkerSeat | None = None,
    access: AccessWriter | None = None,
    again: Callable[[], Config] | None = None,
) -> AsyncIterator[Running]:
    """Listen, watch the pods, and close everything in the end. Raises OSError, and TableError for a bad table.

    seat: which worker this is, where there are several. access: where access lines go, in place of their logger.
    again: reads the configuration anew.
    """
    metrics = Metrics(None if seat is None else seat.number)
    shared = shared_of(config)
    ring = None if config.api_keys is None else load_keys(config.api_keys, shared)
    door = Door(ring, allow_priority=config.net.allow_client_priority)
    watched = [] if config.api_keys is None else [watch_keys(config.api_keys, door, shared)]
    upstream_key = load_upstream_key(config)
    tables = open_checked(config.table) if config.policy == "ppd" else None
    options = PolicyOptions(config.threshold_tokens, tables, config.interpolate, config.drift.drift())
    policy = POLICIES[config.policy](options)
    keeper, measurements = None, None
    if isinstance(policy, MeasuredTable):
        measurements = measurements_of(config.drift, policy, None if seat is None else seat.number)
        keeper = TableKeeper(policy, config.table, told_of_tables(metrics.table_changed, measurements))
        metrics.table_changed(policy.tables, True)
    for_clients, for_pods = tls.server_context(config), tls.client_context(config)
    watched += tls.watch(config, for_clients, for_pods)
    async with (
        PodClient(config.net.timeouts.connect_s, for_pods, upstream_key) as client,
        PodClient(config.net.timeouts.connect_s, for_pods) as outside,
    ):
        if config.upstream_api_key_file is not None:
            watched.append(watch_upstream_key(config.upstream_api_key_file, client))
        parts = Parts(
            fleet=Fleet(Pod(url, role) for role, url in config.pods),
            store=ConversationStore(config.max_conversations, config.conversation_ttl_s),
            policy=policy,
            client=client,
            observer=Observers(metrics, LogObserver(access), *observers),
            settings=config.net,
            canary=Canary(config.canary.percent, shadow=config.canary.shadow),
        )
        if config.tenants is not None:
            parts.tenancy = Tenancy(load_tenants(config.tenants, shared))
            watched.append(watch_tenants(config.tenants, parts.tenancy, shared))
        take_targets(parts, config.slo)
        tracing = _tracing(config, parts)
        if config.canary.passthrough is not None:
            parts.outside = OutsideProxy(config.canary.passthrough, outside)
        canary = CanaryKeeper(parts.canary, config.canary, config.workers)
        parts.observer = Observers(parts.observer, canary)
        parts.fleet.loads = loads_of(config.policy, load_aware=config.load_aware)
        watch_drift(parts, measurements)
        subscriber = _subscriber(config, parts)
        if subscriber is not None:
            parts.observer = Observers(parts.observer, subscriber)
        siblings = None
        if seat is not None:
            siblings = Siblings(seat.folder, seat.number, seat.count, lambda: metrics.served(parts))
        pages: dict[str, MakePage] = {
            "/admin/pods": lambda: pods_page(parts),
            "/admin/residency": lambda: residency_page(parts),
            "/metrics": siblings.page if siblings is not None else lambda: metrics.served(parts),
        }
        own = pages if config.admin is None else {"/metrics": pages["/metrics"]}
        gateway = Gateway(parts, own, door)
        roster = Roster(parts, gateway.health, config.pod_drain_s)
        discovery = Discovery(config.discovery, roster)
        await discovery.start()  # before the state is restored, which knows conversations by their pods
        keeping = keep(config, parts, metrics)
        if parts.tenancy is not None:
            parts.tenancy.shared = shared_quotas(config, parts, metrics)
        if isinstance(policy, MeasuredTable):
            parts.observer = Observers(parts.observer, ModelCheck(policy, gateway.health.model_names))
        server = HttpServer(gateway.handle, config.limits, for_clients, gateway.vet)
        administration = Administration(
            config,
            parts,
            canary,
            gateway=gateway,
            roster=roster,
            discovery=discovery,
            server=server,
            keeper=keeper,
            seat=seat,
            again=again,
            pages=pages,
        )
        try:
            if seat is None:
                port = await server.start(config.host, config.port)
                gateway.health.start()
            else:
                gateway.health.start()
                await _pods_seen(parts, config.net.health.timeout_s)
                port = await server.start(config.host, config.port, shared=True)
            keeping.start()
            for files in watched:
                files.start()
            if keeper is not None:
                keeper.start()
            if measurements is not None:
                measurements.start()
            host = f"[{config.host}]" if ":" in config.host else config.host
            metrics.loop_lag.start()
            if siblings is not None:
                await siblings.start()
            await administration.start()
            scheme = "http" if for_clients is None else "https"
            yield Running(
                gateway,
                server,
                f"{scheme}://{host}:{port}",
                metrics,
                keeper,
                keeping,
                watched,
                roster,
                discovery,
                administration,
            )
        finally:
            await administration.stop()
            metrics.loop_lag.stop()
            for files in watched:
                await files.stop()
            if keeper is not None:
                await keeper.stop()
            await discovery.stop()
            await roster.stop()
            await gateway.health.stop()
            if subscriber is not None:
                await subscriber.stop()
            await server.stop()
            await parts.finish_background()
            if tracing is not None:
                await asyncio.to_thread(tracing.close)
            if siblings is not None:
                await siblings.stop()
            await keeping.stop()
            if measurements is not None:
                await measurements.stop()


async def _pods_seen(parts: Parts, limit_s: float) -> None:
    """Wait until a decode pod is up: a worker that listens gets its share of the traffic at once."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while not parts.fleet.up(Role.DECODE):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


def _subscriber(config: Config, parts: Parts) -> EventSubscriber | None:
    if not config.kv_events:
        return None
    endpoints = {pod: EventSource(True, "zmq", endpoint, replay) for pod, endpoint, replay in config.kv_event_endpoints}
    return EventSubscriber(parts, endpoints)


def _tracing(config: Config, parts: Parts) -> Tracing | None:
    if config.tracing is None:
        return None
    from gateway.ops.tracing import Tracing

    tracing = Tracing(config.tracing)
    parts.tracer, parts.observer = tracing, Observers(parts.observer, tracing)
    return tracing


def tame_garbage_collector() -> None:
    """Let full collections be rare.

    Conversations are freed by reference count (nothing that is forgotten is part of a cycle), while a full collection
    walks all of them and stands still as long.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1_000)


def log_stray(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An error that nobody waited for, without its text and its stack, which may show what a client sent."""
    error = context.get("exception")
    MAIN.error("bug: %s (%s)", context.get("message", ""), "no exception" if error is None else where(error))


async def serve(
    config: Config,
    seat: WorkerSeat | None = None,
    access: AccessWriter | None = None,
    again: Callable[[], Config] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, then let the requests in flight end (`drain_timeout_s`).

    A worker also ends when its parent is gone, which shows at its standard input.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    if seat is not None:
        loop.add_reader(sys.stdin.fileno(), stop.set)
    loop.set_exception_handler(log_stray)
    async with running(config, seat=seat, access=access, again=again) as gateway:
        loop.add_signal_handler(signal.SIGHUP, gateway.reload)
        fleet = gateway.gateway.parts.fleet
        counts = ", ".join(f"{len(fleet.of(role))} {role}" for role in Role)
        MAIN.info("ppd-gateway %s on %s, policy %s, pods: %s", VERSION, gateway.url, config.policy, counts)
        for warning in config.warnings:
            MAIN.warning("%s", warning)
        if gateway.keeper is not None:
            gateway.keeper.introduce()
        tame_garbage_collector()
        await stop.wait()
        if seat is not None:
            loop.remove_reader(sys.stdin.fileno())
        drain_s = gateway.administration.reloader.config.drain_timeout_s
        MAIN.info("stopping: %d requests in flight, up to %g s", gateway.gateway.in_flight, drain_s)
        await gateway.server.stop_accepting()
        if not await gateway.gateway.drain(drain_s):
            MAIN.warning("stopping with %d requests unfinished", gateway.gateway.in_flight)
        if access is not None:
            access.flush()
