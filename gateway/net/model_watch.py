"""Which models the pods serve: asked with their other facts, and at once when somebody names one that none has.

Rule of this room: names that nobody serves cost every pod one small question in LOOK_AGAIN_S, however many there are
and whoever sends them.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING

import msgspec

from gateway.core.pods import Pod
from gateway.net.pod_facts import ModelList, Scout, cards

if TYPE_CHECKING:
    from gateway.net.parts import Parts

LOOK_AGAIN_S = 1.0
"""From the end of one look at all pods to the beginning of the next."""

PATIENCE_S = 1.0
"""How long a request waits for such a look."""


class ModelWatch:
    """lists: per pod URL its `/v1/models`. `stop` in the end."""

    def __init__(self, parts: Parts, scout: Scout) -> None:
        self.lists: dict[str, ModelList] = {}
        self._parts = parts
        self._scout = scout
        self._looking: asyncio.Task[None] | None = None
        self._looked_at = -math.inf

    async def read(self, pod: Pod) -> bool:
        """Ask a pod what it serves now; False when it did not say, so that what was known stays."""
        epoch = pod.epoch
        models = await self._scout.models(pod)
        if models is None or pod.epoch != epoch or not self._parts.has(pod):
            return False
        known = [card for card, _ in cards(models)]
        names = tuple(card.id for card in known)
        self.lists[pod.url] = models
        if names != pod.facts.models:
            if pod.facts.models:
                self._parts.observer.pod_models(pod.url, pod.role, names)
            longest = (known[0].max_model_len or 0) if known else 0
            pod.facts = msgspec.structs.replace(pod.facts, models=names, max_model_len=longest)
        return True

    async def look(self) -> None:
        """Somebody named a model that no pod is known to have: ask them again, unless that was done just now."""
        self.doubt()
        if self._looking is not None:
            await asyncio.wait([self._looking], timeout=PATIENCE_S)

    def doubt(self) -> None:
        """A pod did not know a model: ask all again, but let nobody wait for it."""
        if self._looking is None and time.monotonic() - self._looked_at >= LOOK_AGAIN_S:
            self._looking = asyncio.ensure_future(self._look())

    async def stop(self) -> None:
        """End a look that is under way."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    async def _look(self) -> None:
        try:
            await asyncio.gather(*(self.read(pod) for pod in self._parts.fleet if pod.up))
        finally:
            self._looking, self._looked_at = None, time.monotonic()
