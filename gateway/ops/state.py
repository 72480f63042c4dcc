"""State that outlives the process: the file of this gateway, and what it shares with others, put together.

Rule of this room: nothing here stops a gateway from serving; what is wrong with the state is said in one line.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.core.drift.memory import dump, restore
from gateway.core.memory import Memory
from gateway.core.policies import MeasuredTable
from gateway.net.parts import Parts
from gateway.net.snapshots import SnapshotError, Snapshots
from gateway.ops.config import Config
from gateway.ops.drift import table_id
from gateway.ops.logs import MAIN
from gateway.ops.metrics import Metrics

if TYPE_CHECKING:
    from gateway.net.quotas import QuotaState
    from gateway.net.shared import SharedState


class Keeping:
    """What keeps a gateway's conversations. `start` when it may serve, `stop` when it does no more."""

    def __init__(self, snapshots: Snapshots | None, shared: SharedState | None) -> None:
        self.snapshots = snapshots
        self.shared = shared

    def start(self) -> None:
        """Begin to write and to share."""
        if self.snapshots is not None:
            self.snapshots.start()
        if self.shared is not None:
            self.shared.start()

    async def stop(self) -> None:
        """Write everything a last time."""
        if self.shared is not None:
            await self.shared.stop()
        if self.snapshots is not None:
            await self.snapshots.stop()


def keep(config: Config, parts: Parts, metrics: Metrics) -> Keeping:
    """Restore what the state file holds, and set up what the configuration wants kept."""
    memory = Memory(parts.store, parts.fleet, parts.residency)
    snapshots = None
    if config.state_file is not None:
        snapshots = _snapshots(config.state_file, config, parts, memory, metrics)
        policy = parts.policy
        if isinstance(policy, MeasuredTable):
            snapshots.drift = lambda: kept(policy)
        _restore(snapshots, config, parts)
    if config.state is not None:
        parts.shared = _shared(config.state, config, parts, memory, metrics)
    return Keeping(snapshots, parts.shared)


def shown(url: str) -> str:
    """A state URL as it may be seen: without user and password."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}"


def _snapshots(path: Path, config: Config, parts: Parts, memory: Memory, metrics: Metrics) -> Snapshots:
    def failed(why: str) -> None:
        parts.observer.fault("state_file", None, "-", why)

    return Snapshots(path, config.state_interval_s, memory, parts.fleet, on_failure=failed, on_end=metrics.state_file)


def _restore(snapshots: Snapshots, config: Config, parts: Parts) -> None:
    began_s = time.monotonic()
    try:
        snapshot = snapshots.restore(config.conversation_ttl_s)
    except SnapshotError as error:
        parts.observer.fault("state_refused", None, "-", f"{error}; starting without it")
        return
    if snapshot is None:
        MAIN.info("state: no %s yet", snapshots.path)
        return
    if isinstance(parts.policy, MeasuredTable):
        _restore_drift(parts.policy, snapshot.drift, parts)
    for url in snapshot.instances:
        parts.explained[url] = parts.losses[url]
    took_s = time.monotonic() - began_s
    age = f"{snapshot.age_s:.0f} s old, read in {took_s:.2f} s"
    MAIN.info("state: %d conversations from %s, %s", len(parts.store), snapshots.path, age)


def shared_quotas(config: Config, parts: Parts, metrics: Metrics) -> QuotaState | None:
    """The tenants' quotas of all gateways together, where they share a state."""
    if parts.shared is None or config.state is None:
        return None
    from gateway.net.quotas import QuotaState

    return QuotaState(parts.shared.link, config.state_timeout_s, metrics.shared_state)


def kept(policy: MeasuredTable) -> str:
    """What is known of drift, as text."""
    return "" if policy.drift is None else dump(policy.drift, table_id(policy.tables)).decode()


def _restore_drift(policy: MeasuredTable, content: str, parts: Parts) -> None:
    if policy.drift is None or not content:
        return
    try:
        restore(policy.drift, table_id(policy.tables), content.encode(), time.monotonic())
    except ValueError as error:
        policy.drift.table_changed()
        parts.observer.fault("state_refused", None, "-", f"{error}; starting without it")


def _shared(url: str, config: Config, parts: Parts, memory: Memory, metrics: Metrics) -> SharedState:
    from gateway.net.redis_link import RedisLink  # 10 MB that only those pay who share
    from gateway.net.shared import SharedState

    def report(there: bool, why: str) -> None:
        if there:
            MAIN.info("shared state %s: %s", shown(url), why)
        else:
            MAIN.warning("shared state %s: %s; going on with what is known here", shown(url), why)

    return SharedState(
        RedisLink(url, config.state_namespace),
        memory,
        lambda: parts.rate.per_second(time.monotonic()),
        timeout_s=config.state_timeout_s,
        ttl_s=config.conversation_ttl_s,
        on_count=metrics.shared_state,
        report=report,
    )
