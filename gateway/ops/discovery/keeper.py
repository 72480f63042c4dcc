"""Brings what the sources say into the fleet.

Rule of this room: a source that fails changes nothing. What it said last stays, and that is said once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from gateway.core.settling import Found, Settling, SettlingRules, Wanted
from gateway.net.gateway import where
from gateway.net.roster import Roster
from gateway.ops.discovery.plan import DiscoveryPlan, DnsName
from gateway.ops.logs import MAIN

FIRST_S = 5.0


class Ear(Protocol):
    """Who listens to a source."""

    def answer(self, found: Iterable[Found]) -> None:
        """All pods that there are."""

    def failed(self, why: str) -> None:
        """It could not be asked."""

    def remark(self, text: str) -> None:
        """Something an operator should know, once."""


class Source(Protocol):
    """Something that knows pods. name: in logs, and in the roster. sure_of_absence: see `SettlingRules`."""

    name: str
    sure_of_absence: bool

    async def run(self, ear: Ear) -> None:
        """Tell all pods whenever they may have changed, until cancelled."""

    def reload(self) -> None:
        """Look again now (SIGHUP)."""


@dataclass(frozen=True, slots=True)
class SourceState:
    """For the admin page. pods: that are in the fleet through it. answered_s: since it last answered, None for never.
    trouble: why it cannot be asked at present, or what of its answer is not believed yet."""

    name: str
    pods: int
    answered_s: float | None
    trouble: str | None


class Follower:
    """One source, and what of it is in the roster."""

    def __init__(self, source: Source, roster: Roster, rules: SettlingRules) -> None:
        self.source = source
        self._roster = roster
        self._settling = Settling(dataclasses.replace(rules, sure_of_absence=source.sure_of_absence))
        self._news = asyncio.Event()
        self._answered_at: float | None = None
        self._failing: str | None = None
        self._doubt: str | None = None
        self._drained: frozenset[str] = frozenset()
        self._remarks: dict[str, None] = {}
        self.spoke = asyncio.Event()

    def answer(self, found: Iterable[Found]) -> None:
        now_s = time.monotonic()
        if self._failing is not None:
            MAIN.info("discovery %s: it answers again", self.source.name)
            self._failing = None
        self._answered_at = now_s
        self._settling.answer(found, now_s)
        self._apply(self._settling.wanted(now_s))
        self._news.set()
        self.spoke.set()

    def failed(self, why: str) -> None:
        if self._failing is None:
            known = len(self._roster.of(self.source.name))
            MAIN.warning("discovery %s: %s; the %d pods known stay", self.source.name, why, known)
        self._failing = why
        self.spoke.set()

    def remark(self, text: str) -> None:
        if text in self._remarks:
            return
        MAIN.warning("discovery %s: %s", self.source.name, text)
        self._remarks[text] = None
        if len(self._remarks) > 1000:
            del self._remarks[next(iter(self._remarks))]

    @property
    def state(self) -> SourceState:
        since = None if self._answered_at is None else time.monotonic() - self._answered_at
        pods = len(self._roster.of(self.source.name))
        return SourceState(self.source.name, pods, since, self._failing or self._doubt)

    async def follow(self) -> None:
        """Look again at what is not believed yet."""
        while True:
            wanted = self._settling.wanted(time.monotonic())
            self._apply(wanted)
            self._news.clear()
            wait_s = wanted.again_at - time.monotonic()
            try:
                async with asyncio.timeout(None if math.isinf(wait_s) else max(0.0, wait_s)):
                    await self._news.wait()
            except TimeoutError:
                continue

    def _apply(self, wanted: Wanted) -> None:
        name, roster = self.source.name, self._roster
        if wanted.doubt is not None and self._doubt is None:
            MAIN.warning("discovery %s: %s; they stay unless that lasts", name, wanted.doubt)
        self._doubt = wanted.doubt
        before = roster.of(name)
        for url, role in wanted.pods.items():
            if before.get(url) is not role:
                roster.add(url, role, source=name)
                if (valid := roster.role_of(url)) is not role:
                    self.remark(f"{url} is a {role} pod here, but {roster.sources(url)[0]} had it first, as {valid}")
        for url in before.keys() - wanted.pods.keys():
            roster.remove(url, source=name)
        for url in (wanted.drained ^ self._drained) & wanted.pods.keys():
            roster.set_draining(url, url in wanted.drained, source=name)
        self._drained = wanted.drained


class Discovery:
    """All sources. `start` first, `stop` in the end. first_s: how long a start waits for every source to speak."""

    first_s = FIRST_S

    def __init__(self, plan: DiscoveryPlan, roster: Roster) -> None:
        self._plan = plan
        self._roster = roster
        self._followers: dict[str, Follower] = {}
        self._tasks: dict[asyncio.Task[None], str] = {}

    async def start(self) -> None:
        """Ask all sources, and wait until each has answered or failed, but not for ever."""
        for source in _sources(self._plan):
            self._begin(source)
        speaking = [asyncio.ensure_future(follower.spoke.wait()) for follower in self._followers.values()]
        try:
            if speaking:
                await asyncio.wait(speaking, timeout=self.first_s)
        except BaseException:
            await self.stop()
            raise
        finally:
            for each in speaking:
                each.cancel()
        for name, follower in self._followers.items():
            if not follower.spoke.is_set():
                MAIN.warning("discovery %s: no answer within %g s; starting without it", name, self.first_s)

    def reload(self) -> None:
        """Ask all sources now (SIGHUP)."""
        for follower in self._followers.values():
            follower.source.reload()

    def take_names(self, names: tuple[DnsName, ...]) -> None:
        """Other DNS names are configured now; pods that only the former had leave."""
        before, self._plan = self._plan.names, dataclasses.replace(self._plan, names=names)
        for name in set(before) - set(names):
            self._end(name.url)
        for source in _named(self._plan):
            if source.name not in self._followers:
                self._begin(source)

    @property
    def states(self) -> list[SourceState]:
        """How the sources are."""
        return [follower.state for follower in self._followers.values()]

    async def stop(self) -> None:
        """Ask nobody any more; the fleet stays as it is."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, source: Source) -> None:
        follower = self._followers[source.name] = Follower(source, self._roster, self._plan.rules)
        for work in (source.run(follower), follower.follow()):
            task = asyncio.ensure_future(work)
            self._tasks[task] = source.name
            task.add_done_callback(self._ended)

    def _end(self, name: str) -> None:
        del self._followers[name]
        for task in [task for task, of in self._tasks.items() if of == name]:
            task.cancel()
        for url in self._roster.of(name):
            self._roster.remove(url, source=name)

    def _ended(self, task: asyncio.Task[None]) -> None:
        name = self._tasks.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            MAIN.error("discovery %s: bug: %s; nothing more is learned from it", name, where(error))


def _sources(plan: DiscoveryPlan) -> list[Source]:
    sources = _named(plan)
    if plan.file is not None:
        from gateway.ops.discovery.files import FileSource

        sources.append(FileSource(plan.file))
    if plan.kubernetes is not None:
        from gateway.ops.discovery.kubernetes import KubernetesSource

        sources.append(KubernetesSource(plan.kubernetes))
    return sources


def _named(plan: DiscoveryPlan) -> list[Source]:
    if not plan.names:
        return []
    from gateway.ops.discovery.names import DnsSource, resolver

    resolve = resolver(plan)
    return [DnsSource(name, resolve, plan.interval_s) for name in plan.names]
