"""The alarms that the live page shows, and the part of the flow that never moved."""

from __future__ import annotations

import dataclasses
import math
import time

import msgspec

from gateway.core.breakers import BreakerState
from gateway.core.canary import CanaryState, CanaryStatus
from gateway.core.policies import MeasuredTable
from gateway.net.records import Outcome, RequestRecord
from gateway.ops.admin.alarms import alarms, merged
from gateway.ops.admin.decisions import RecentDecisions, shown
from gateway.ops.admin.flow import merged as merged_flow
from gateway.ops.admin.schemas import Alarm, Alarms, Flow, FlowPod
from gateway.ops.logs import request_fields
from tests.net.world import CHAT, assistant, user
from tests.ops.admin_world import Admin, admin

ON = CanaryStatus(CanaryState.ON, 100.0, "as configured", 0.0)


async def said(a: Admin) -> list[tuple[str, str, str]]:
    found = await a.get("/api/v1/alarms")
    return [(each["severity"], each["subject"], each["message"]) for each in found["alarms"]]


async def test_where_all_is_well_there_is_no_alarm() -> None:
    async with admin() as a:
        assert await said(a) == []


async def test_pods_in_trouble_are_named() -> None:
    async with admin(prefill=1, decode=2, replica=1) as a:
        fleet = a.w.gateway.parts.fleet
        first, second, whole = a.w.decode[0].url, a.w.decode[1].url, a.w.replica[0].url
        down = a.w.prefill[0]
        await a.w.kill(down)
        await a.w.watcher.until(lambda: not a.w.watcher.pods[down.url])
        slow = fleet.get(first)
        assert slow is not None
        slow.weight, slow.direct_off = 0.25, "it answered otherwise"
        broken = fleet.get(second)
        assert broken is not None
        broken.breaker.state = BreakerState.HALF_OPEN
        a.w.running.roster.set_draining(whole, True, source="admin")
        assert await said(a) == [
            ("critical", "gateway", "No prefill pod is up: decode pods prefill everything themselves."),
            ("warning", down.url, "This prefill pod is down."),
            ("warning", first, "Far from its peers: it gets 25 % of its share."),
            ("warning", first, "No later turns go there straight: it answered otherwise."),
            ("warning", second, "Its breaker is half open."),
            ("info", whole, "It is being drained: it gets nothing new."),
        ]


async def test_pairs_that_are_held_back_are_named() -> None:
    async with admin(decode=1) as a:
        prefill, decode = a.w.prefill[0].url, a.w.decode[0].url
        a.w.gateway.parts.fleet.pairs.hold(decode, [(prefill, decode)])
        assert ("warning", prefill, f"Hands nothing over to {decode}.") in await said(a)


async def test_nobody_left_to_answer_is_the_worst() -> None:
    async with admin(prefill=0, decode=1) as a:
        await a.w.kill(a.w.decode[0])
        await a.w.watcher.until(lambda: not a.w.watcher.pods[a.w.decode[0].url])
        a.w.gateway.draining = True
        found = await said(a)
        assert found[0] == ("critical", "gateway", "No decode or replica pod is up: nothing can be answered.")
        assert found[-1][0] == "info"


async def test_a_table_that_was_measured_elsewhere_is_named() -> None:
    async with admin(policy="ppd", prefill=2, decode=3) as a:
        assert [each[:2] for each in await said(a)] == [("warning", "table"), ("info", "table")]


async def test_a_canary_that_the_guard_stopped_is_named() -> None:
    async with admin() as a:
        a.w.gateway.parts.canary.stop("ttft is worse", time.time())
        assert await said(a) == [("critical", "canary", "The guard stopped it: ttft is worse.")]


async def test_failed_requests_of_the_last_minute_are_counted() -> None:
    async with admin() as a:
        parts = a.w.gateway.parts
        for failed, of, severity in ((1, 4, "warning"), (3, 4, "critical")):
            decisions = RecentDecisions()
            for number in range(of):
                outcome = Outcome.FAILED if number < failed else Outcome.OK
                decisions.finished(RequestRecord(str(number), "POST", "/", outcome=outcome, route="pd"))
            old = RequestRecord("old", "POST", "/", outcome=Outcome.FAILED, route="pd")
            decisions.records.appendleft((time.time() - 61.0, old))
            [alarm] = alarms(parts, ON, decisions, draining=False).alarms
            message = f"{failed} of {of} requests failed in the last minute."
            assert alarm == Alarm(severity, "gateway", message)  # type: ignore[arg-type]


def test_workers_that_say_the_same_are_heard_once() -> None:
    one = Alarm("info", "table", "simulated")
    worse = Alarm("critical", "gateway", "nobody")
    assert merged([Alarms([one]), Alarms([one, worse])], None).alarms == [worse, one]


def test_every_field_of_the_access_log_is_in_a_decision() -> None:
    record = RequestRecord("r", "POST", "/")
    for field in dataclasses.fields(record):
        if getattr(record, field.name) is None:
            setattr(record, field.name, 2 if field.name.endswith(("_s", "_tokens")) else "x")
    record.status, record.route, record.attempts, record.queued_s = 200, "pd", 2, 1.5
    told = msgspec.to_builtins(shown(5.0, record))
    assert {name: told[name] for name in request_fields(record)} == request_fields(record)
    assert {"class", "queued_ms", "refused", "tpot_ms"} <= set(told)


async def test_the_flow_tells_what_stayed_and_what_was_appended() -> None:
    async with admin(decode=1) as a:
        reply = await a.w.chat([user()])
        await a.w.chat([user(), assistant(reply.text), user("And then?")])
        later = await a.w.record(2)
        found = await a.get("/api/v1/flow")
        [decode] = [pod for pod in found["pods"] if pod["role"] == "decode"]
        tokens = [round(decode[name] * found["window_s"]) for name in ("stayed_tokens_per_s", "appended_tokens_per_s")]
        assert later.cached_tokens is not None
        assert later.prompt_tokens is not None
        assert tokens == [later.cached_tokens, later.prompt_tokens - later.cached_tokens]
        assert min(tokens) > 0


def test_the_flows_of_workers_are_added() -> None:
    def part() -> Flow:
        return Flow(10.0, [], [FlowPod("http://d:1", "decode", True, 1, 5, 0.5, 1.0, 2.0, 3.0, 4.0)])

    [pod] = merged_flow([part(), part()], None).pods
    assert pod == FlowPod("http://d:1", "decode", True, 2, 10, 0.5, 2.0, 4.0, 6.0, 8.0)


async def test_a_table_that_is_off_says_how() -> None:
    async with admin(policy="ppd", prefill=1, decode=1) as a:
        policy = a.w.gateway.parts.policy
        assert isinstance(policy, MeasuredTable)
        assert policy.drift is not None
        series = policy.drift.series["local", "ttft"]
        series.level, series.drifting = math.log(1.8), True
        policy.drift.drifting = True
        severity, subject, message = (await said(a))[0]
        assert (severity, subject) == ("warning", "table")
        assert message.startswith("It no longer describes this cluster (local ttft ×1.80): ")


async def test_a_target_that_is_not_met_is_named() -> None:
    settings = {"slo.standard.ttft_p99_ms": "0.001", "slo.standard.tpot_p99_ms": "60000", "slo.min_samples": "1"}
    async with admin(policy="ppd", prefill=1, decode=1, **settings) as a:
        await a.w.chat([user()])
        await a.w.post(CHAT, {"model": "sim", "messages": [user()], "max_tokens": 8, "stream": True})
        await a.w.record(2)
        [(severity, message)] = [each[::2] for each in await said(a) if each[1] == "target"]
        assert severity == "warning"
        assert message.startswith("ttft_p99_ms of class standard should be 0.001, it is ")
