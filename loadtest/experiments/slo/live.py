"""The same case on HTTP: simulated pods and a gateway in this process, in real time.

Rule of this room: what is said, when, by whom and how long the answers are is the virtual case's own traffic; only the
pods' steps are stretched (`slowness`), in virtual time as well, so that one core can play them in real time.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import random
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from gateway.core.keys import hash_of
from gateway.core.tenants import Tenant
from gateway.ops.config import Config, load
from gateway.ops.serve import Running, running
from loadtest.experiments import assignments
from loadtest.experiments.outcomes import Fate, TurnRecord
from loadtest.experiments.run import Spec
from loadtest.experiments.scenario import Kill, Restart, Slow
from loadtest.experiments.slo.play import Case, Played, alarms_of, played
from loadtest.experiments.sweep import run_many
from loadtest.experiments.traffic import Arrival, traffic
from loadtest.live.answer import Answer
from loadtest.live.client import Client, Patience
from loadtest.live.endpoint import endpoint_of
from loadtest.live.talks import STREAMED, Dialogue, Talk, Turn
from loadtest.pod.simulated import SimulatedPod

MODEL = "sim"
_WORDS = ["".join(letters) for letters in itertools.product("bdgklmnr", "aeio", "bdgklmnr", "aeio")]
"""One token each."""
_REFUSED = ("http_429", "http_503")


def stretched(case: Case, slowness: float) -> Case:
    """That case on pods whose steps take so many times as long, from the beginning."""
    pods = [pod.url for pod in assignments.parse(case.spec.assignment).pods()]
    slow = tuple(Slow(0.0, pod, slowness) for pod in pods)
    return replace(case, spec=replace(case.spec, events=(*slow, *case.spec.events)))


def side_by_side(cases: Sequence[Case], slowness: float) -> list[tuple[Played, Played]]:
    """Each in virtual time and on HTTP, one per core at a time: a late event loop would count as a slow pod."""
    virtual = [played(stretched(case, slowness)) for case in cases]
    print(f"{len(cases)} cases on HTTP pod simulators, in real time ...", file=sys.stderr, flush=True)
    real = run_many(partial(on_http, slowness=slowness), cases, jobs=os.cpu_count())
    return list(zip(virtual, real, strict=True))


def on_http(case: Case, slowness: float) -> Played:
    """Play it for real. The case as `stretched` gets it."""
    return uvloop.run(_play(case, slowness))


async def _play(case: Case, slowness: float) -> Played:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pods = await _pods(case, slowness, stack)
        tenants = sorted({stream.tenant for stream in case.spec.streams})
        keys = {tenant: f"key-{secrets.token_hex(8)}" for tenant in tenants}
        gateway = await stack.enter_async_context(running(_config(case, pods, keys, folder)))
        await _all_up(gateway, len(pods))
        clients = {tenant: await stack.enter_async_context(_client(gateway.url, keys[tenant])) for tenant in tenants}
        stage = _Stage(case, clients)
        events = asyncio.ensure_future(_happen(case, pods, stage, slowness))
        await stage.run()
        events.cancel()
        await asyncio.gather(events, return_exceptions=True)
        desk = gateway.gateway.parts.admission.desk
        refused: dict[str, int] = {}
        for (_, why), count in desk.refused.items():
            refused[why] = refused.get(why, 0) + count
        tenancy = gateway.gateway.parts.tenancy
        refused["quota"] = 0 if tenancy is None else sum(account.refused for _, account in tenancy.quotas)
        ended_s = max((turn.at_s + turn.e2e_s for turn in stage.turns if not math.isnan(turn.e2e_s)), default=0.0)
        alarms = tuple(at_s - stage.began_s for at_s in alarms_of(gateway.gateway.parts.policy))
        return Played(case, stage.turns, ended_s, refused, sum(desk.queued.values()), stage.repeated, [], alarms)


class _Pods(dict[str, tuple[SimulatedPod, AsyncExitStack]]):
    """By the case's names."""


async def _pods(case: Case, slowness: float, stack: AsyncExitStack) -> _Pods:
    profile, found = case.spec.hardware.load(), _Pods()
    for pod in assignments.parse(case.spec.assignment).pods():
        inner = await stack.enter_async_context(AsyncExitStack())
        made = SimulatedPod(role=pod.role.value, profile=profile, time_scale=1.0 / slowness, model=MODEL)
        found[pod.url] = (await inner.enter_async_context(made), inner)
    return found


def _config(case: Case, pods: _Pods, keys: dict[str, str], folder: Path) -> Config:
    """What the case's control says, as an operator would."""
    control = case.control
    roles = {pod.url: pod.role.value for pod in assignments.parse(case.spec.assignment).pods()}
    settings: dict[str, Any] = {"prefill": [], "decode": [], "replica": []}
    for name, (pod, _) in pods.items():
        settings[roles[name]].append(pod.url)
    (folder / "keys").write_text("".join(f"{hash_of(key)} {name or 'all'}\n" for name, key in keys.items()))
    (folder / "keys").chmod(0o600)
    (folder / "tenants").write_text("".join(_tenant(name, tenant) for name, tenant in control.tenants.items()))
    rules = control.rules
    settings |= {
        "policy": case.spec.policy,
        "port": 0,
        "selftest": False,
        "pairs.probe": False,
        "log_level": "error",
        "api_keys": str(folder / "keys"),
        "tenants_file": str(folder / "tenants"),
        "admission.max_tokens": rules.max_tokens,
        "admission.prefill_tokens": rules.prefill_tokens,
        "admission.decode_tokens": rules.decode_tokens,
        "admission.queue": rules.queue,
        "admission.predict": rules.predict,
        "timeouts.first_byte_s": case.spec.patience.first_token_s,
    }
    if case.spec.tables is not None:
        settings |= _policy(case.spec)
    if rules.queue_s:
        settings["queue_s"] = rules.queue_s
    for service, deadline_s in control.deadlines_s.items():
        settings[f"slo.{service}.ttft_p99_ms"] = deadline_s * 1000
    return load(None, {}, settings)


def _policy(spec: Spec) -> dict[str, Any]:
    """The table, the weights, and what is done about drift."""
    weights, drift = spec.knobs.weights, spec.drift
    settings = {"table": str(spec.tables), "weights": f"ttft={weights.w_ttft},tpot={weights.w_tpot}"}
    if drift is None:
        return {**settings, "drift.mode": "off"}
    return {
        **settings,
        "drift.mode": "correct" if drift.correct else "watch",
        "drift.tolerance": drift.tolerance,
        "drift.half_life_s": drift.half_life_s,
        "drift.false_alarms": drift.false_alarms,
        "drift.explore": drift.explore,
    }


def _tenant(name: str, tenant: Tenant) -> str:
    return (
        f'[tenants.{name}]\nclass = "{tenant.service}"\nshare = {tenant.share}\nburst_s = {tenant.burst_s}\n'
        f"requests_per_s = {tenant.requests_per_s}\ntokens_per_min = {tenant.tokens_per_min}\n"
    )


async def _all_up(gateway: Running, count: int) -> None:
    async with asyncio.timeout(30):
        while sum(pod.up for pod in gateway.gateway.parts.fleet) < count:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)


@asynccontextmanager
async def _client(url: str, key: str) -> AsyncIterator[Client]:
    patience = Patience(first_s=60.0, total_s=600.0)
    client = Client(endpoint_of(url, key=key), "chat", patience, time.perf_counter, "X-Session-ID")
    try:
        yield client
    finally:
        client.close()


async def _happen(case: Case, pods: _Pods, stage: _Stage, slowness: float) -> None:
    """The scenario's events. That pods are stretched from the beginning is their clock's."""
    for event in sorted(case.spec.events, key=lambda each: each.at_s):
        if isinstance(event, Kill):
            await stage.until(event.at_s)
            await pods[event.pod][1].aclose()
        elif isinstance(event, Slow) and event.at_s > 0:
            await stage.until(event.at_s)
            pods[event.pod][0].slow_down(event.factor / slowness)
        elif isinstance(event, Restart):
            raise ValueError("on HTTP pods do not come back")


class _Stage:
    """All conversations of a case."""

    def __init__(self, case: Case, clients: dict[str, Client]) -> None:
        self._case = case
        self._clients = clients
        self.began_s = time.perf_counter()
        self.turns: list[TurnRecord] = []
        self.repeated = 0

    async def run(self) -> None:
        spec = self._case.spec
        events = [event for event in spec.events if not isinstance(event, Slow)]
        arrivals: Iterator[Arrival] = traffic(spec.streams, events, spec.extent, spec.seed)
        async with asyncio.TaskGroup() as group:
            for arrival in arrivals:
                await self.until(arrival.at_s)
                group.create_task(self._talk(arrival))

    async def until(self, moment_s: float) -> None:
        while (left_s := self.began_s + moment_s - time.perf_counter()) > 0:  # noqa: ASYNC110 - a timer may fire early
            await asyncio.sleep(left_s)

    async def _talk(self, arrival: Arrival) -> None:
        dice = random.Random(f"words/{self._case.spec.seed}/{arrival.number}")
        dialogue = Dialogue("chat", MODEL, Talk("", ()), "", {**STREAMED, "ignore_eos": True})
        at_s = arrival.at_s
        for number, script in enumerate(arrival.script.turns, start=1):
            if number > 1:
                at_s = self._now() + script.think_s
                if at_s >= (self._case.spec.extent.until_s or math.inf):
                    return  # what is due later is not counted
                await self.until(at_s)
            body = dialogue.say(Turn(" ".join(dice.choices(_WORDS, k=script.new_tokens)), script.output_tokens))
            came = await self._ask(arrival, body, number)
            fate = _fate(came)
            self._note(arrival, number, at_s, came, fate)
            if fate is not Fate.GOOD:
                for lost, rest in enumerate(arrival.script.turns[number:], start=number + 1):
                    self._lost(arrival, lost, rest.new_tokens, rest.output_tokens)
                return
            dialogue.hear(came.text)

    async def _ask(self, arrival: Arrival, body: bytes, number: int) -> Answer:
        patience = self._case.spec.patience
        for repeat in range(patience.repeats + 1):
            came = await self._clients[arrival.tenant].ask(body, f"c{arrival.number}", number)
            if _fate(came) is not Fate.FAILED or repeat == patience.repeats:
                break
            self.repeated += 1
            await asyncio.sleep(patience.repeat_s)
        return came

    def _now(self) -> float:
        return time.perf_counter() - self.began_s

    def _note(self, arrival: Arrival, number: int, at_s: float, came: Answer, fate: Fate) -> None:
        script = arrival.script.turns[number - 1]
        first_s = math.nan if came.first_s is None else came.first_s - self.began_s
        last_s = math.nan if came.last_s is None else came.last_s - self.began_s
        gaps = came.output_tokens - 1
        self.turns.append(
            TurnRecord(
                arrival.number,
                number,
                arrival.tenant,
                at_s,
                came.sent_s - self.began_s,
                first_s - at_s,
                (last_s - first_s) / gaps if gaps > 0 and fate is Fate.GOOD else math.nan,
                came.end_s - self.began_s - at_s,
                came.prompt_tokens or 0,
                script.new_tokens,
                script.output_tokens,
                came.cached_tokens or 0,
                "",
                fate,
            )
        )

    def _lost(self, arrival: Arrival, number: int, new: int, output: int) -> None:
        nan, now, whose = math.nan, self._now(), arrival.tenant
        turn = TurnRecord(arrival.number, number, whose, now, nan, nan, nan, nan, 0, new, output, 0, "", Fate.LOST)
        self.turns.append(turn)


def _fate(came: Answer) -> Fate:
    if came.fault is None:
        return Fate.GOOD
    if came.fault in _REFUSED:
        return Fate.REJECTED
    return Fate.TIMED_OUT if came.fault.startswith("timeout") else Fate.FAILED
