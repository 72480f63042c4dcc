"""A pod that is far from its peers, as operators see it."""

from __future__ import annotations

import time

from gateway.core.pods import Role
from tests.net.leftovers import clean_world
from tests.net.world import user


async def test_a_slow_pod_is_named_and_gets_less() -> None:
    async with clean_world(prefill=0, decode=3, **{"health.interval_s": 60}) as w:
        parts = w.gateway.parts
        slow, *others = parts.fleet.of(Role.DECODE)
        for _ in range(20):
            parts.outliers.timed(slow, 1.0, 1000, time.monotonic())
            for other in others:
                parts.outliers.timed(other, 0.1, 1000, time.monotonic())
        parts.outliers._reviewed_at = 0.0
        parts.review_outliers()
        assert w.watcher.faults == [("outlier", slow.url, w.watcher.faults[0][2])]
        page = {pod["url"]: pod["weight"] for pod in (await w.get("/admin/pods")).json["pods"]}
        assert page == {slow.url: 0.5, others[0].url: 1.0, others[1].url: 1.0}
        assert f'ppd_pod_weight{{pod="{slow.url}"}} 0.5' in (await w.get("/metrics")).body.decode()
        for number in range(12):
            await w.chat([user(f"question {number}")])
        assert slow.url not in {record.answering for record in w.watcher.records}


async def test_what_pods_take_for_a_first_token_is_measured_on_both_legs() -> None:
    async with clean_world(prefill=1, decode=1, policy="local") as w:
        parts = w.gateway.parts
        first = await w.chat([user()], stream=True)
        again = [user(), {"role": "assistant", "content": first.streamed_text}, user("and then?")]
        await w.chat(again, stream=True)
        counts = {pod.role: len(parts.outliers._seen[pod.url].times) for pod in parts.fleet}
        assert counts == {Role.PREFILL: 1, Role.DECODE: 1}
