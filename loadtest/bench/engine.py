"""How many turns a minute the engine model plays under the virtual clock, on one core.

Rule of this room: everything a simulated turn costs is in the number: recognising, deciding (`gateway.core`), both
legs, their callbacks, and what the gateway learns. Only reading and writing files is not.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.core.conversations import ConversationStore, Recognition, TurnResult
from gateway.core.decide import Plan, Request, decide
from gateway.core.outputs import OutputLengths
from gateway.core.pods import Fleet, Pod, Role
from gateway.core.policies import POLICIES, PolicyOptions
from gateway.core.rates import RequestRate
from gateway.core.residency import Residency
from loadtest.engine import profile as profiles
from loadtest.engine.core import Engine
from loadtest.engine.kv_connector import KvConfig
from loadtest.engine.request import EngineOutput, EngineRequest, Finish, KvIntent
from loadtest.engine.segments import Segments
from loadtest.engine.virtual import VirtualCluster
from lut.assignment import parse
from lut.table import TableSet

TARGET_TURNS_PER_MINUTE = 200_000
TABLES = Path(__file__).parents[2] / "lut" / "simulated-h100-llama3.1-8b"
TURNS = 8
SYSTEM_TOKENS = 256
FIRST_TOKENS = 1_500
NEW_TOKENS = 64
ANSWER_TOKENS = 128
THINK_S = 1.0


def add_command(commands: Any) -> None:
    """Mount the benchmark."""
    parser = commands.add_parser("engine", help="how many simulated turns a minute one core plays")
    parser.add_argument("--policies", default="pd,ppd", metavar="NAME,NAME")
    parser.add_argument("--assignment", default="1P_3D", metavar="π")
    parser.add_argument("--conversations", type=int, default=500, help="of eight turns each")
    parser.add_argument("--rate", type=float, default=8.0, help="conversations begun per second")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step-by-step", action="store_true", help="no macro-steps, for comparison")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.set_defaults(run=_run)


@dataclass(slots=True)
class _Talk:
    number: int
    prompt: Segments
    begun: int = 0


class World:
    """A gateway's memory, and pods. `play` runs conversations to their end."""

    def __init__(self, policy: str, assignment: str, *, leaps: bool, seed: int) -> None:
        nodes = parse(assignment)
        if nodes is None:
            raise ValueError(f"{assignment!r} is not a node assignment like 1P_3D")
        profile = profiles.load("h100-llama3.1-8b")
        names = [f"p{n}" for n in range(nodes.prefill)] + [f"d{n}" for n in range(nodes.decode)]
        self.cluster = VirtualCluster(leaps=leaps)
        for name in names:
            self.cluster.add(name, Engine(profile, kv=KvConfig(name)))
        self._fleet = Fleet(Pod(n, Role.PREFILL if n[0] == "p" else Role.DECODE, up=True) for n in names)
        tables = TableSet.open(TABLES) if policy == "ppd" else None
        self._policy = POLICIES[policy](PolicyOptions(tables=tables))
        self._residency, self._store = Residency(), ConversationStore(1_000_000, 1e9)
        self._outputs, self._rate = OutputLengths(), RequestRate(0.0)
        self._draw = random.Random(seed)
        self.turns = 0
        self.routes: dict[str, int] = {}
        self.ttft_s: list[float] = []

    def play(self, conversations: int, rate: float) -> None:
        """Conversations begin as a Poisson process; all are played to the end."""
        when = 0.0
        for number in range(conversations):
            when += self._draw.expovariate(rate)
            prompt = Segments([(0, SYSTEM_TOKENS), (1 + 100 * number, FIRST_TOKENS)])
            self.cluster.call_at(when, self._later(_Talk(number, prompt)))
        self.cluster.run()

    def _later(self, talk: _Talk) -> Callable[[], None]:
        return lambda: self._turn(talk)

    def _turn(self, talk: _Talk) -> None:
        now, prompt = self.cluster.now, talk.prompt
        talk.begun += 1
        answer = 100 * talk.number + 2 * talk.begun
        recognition = self._store.recognise(b"root", str(talk.number), None, talk.number.to_bytes(16, "big"), now)
        conversation = recognition.conversation
        self._rate.count(now)
        expected = self._outputs.expect(conversation.recent_outputs, b"tenant", ANSWER_TOKENS)
        request = Request(len(prompt), output_tokens=expected, rate=self._rate.per_second(now))
        plan = decide(request, recognition, self._fleet, self._policy, self._residency)
        assert plan is not None
        self._store.begin(conversation)
        self.routes[plan.route] = self.routes.get(plan.route, 0) + 1
        pods = [plan.answering] if plan.prefill is None else [plan.prefill, plan.answering]
        for pod in pods:
            pod.take(len(prompt))

        def heard(at: float, output: EngineOutput) -> None:
            if output.prefill is not None:
                self.ttft_s.append(at - now)
            if output.finish is not None:
                for pod in pods:
                    pod.give_back(len(prompt))
                self._learn(recognition, plan, len(prompt), output)
                self.turns += 1
                if talk.begun < TURNS:
                    asked = prompt.extended(answer, output.num_tokens)
                    talk.prompt = asked.extended(answer + 1, NEW_TOKENS)
                    self.cluster.call_at(at + self._draw.expovariate(1 / THINK_S), self._later(talk))

        def second_leg(at: float, output: EngineOutput) -> None:
            if output.finish is not None:
                assert output.offer is not None
                self._ask(
                    plan.answering, prompt, answer, KvIntent(do_remote_prefill=True, source=output.offer.source), heard
                )

        if plan.prefill is None:
            self._ask(plan.answering, prompt, answer, None, heard)
        else:
            leg = EngineRequest(str(answer), prompt, 1, answer=answer, kv=KvIntent(do_remote_decode=True))
            self.cluster.submit(plan.prefill.url, leg, second_leg)

    def _ask(
        self, pod: Pod, prompt: Segments, answer: int, kv: KvIntent | None, heard: Callable[[float, EngineOutput], None]
    ) -> None:
        self.cluster.submit(pod.url, EngineRequest(str(answer), prompt, ANSWER_TOKENS, answer=answer, kv=kv), heard)

    def _learn(self, recognition: Recognition, plan: Plan, prompt_tokens: int, output: EngineOutput) -> None:
        assert output.finish is Finish.LENGTH
        pod, key = plan.answering, recognition.conversation.key
        prefill = plan.prefill.url if plan.prefill else None
        result = TurnResult(prefill, pod.url, pod.epoch, plan.route, prompt_tokens, output.num_tokens, None)
        self._store.finish(recognition, None, result)
        self._outputs.learn(b"tenant", output.num_tokens)
        self._residency.used(pod, key, prompt_tokens + output.num_tokens)
        if plan.prefill:
            self._residency.used(plan.prefill, key, prompt_tokens)


def _measure(policy: str, options: argparse.Namespace) -> dict[str, Any]:
    rounds = []
    for seed in range(options.rounds):
        world = World(policy, options.assignment, leaps=not options.step_by_step, seed=seed)
        gc.collect()
        began = time.process_time()
        world.play(options.conversations, options.rate)
        rounds.append((time.process_time() - began) / world.turns)
    per_turn_s = min(rounds)  # a busy machine only adds
    return {
        "turns_per_minute": round(60 / per_turn_s),
        "us_per_turn": round(1e6 * per_turn_s, 1),
        "turns": world.turns,
        "routes": world.routes,
        "ttft_median_ms": round(1e3 * statistics.median(world.ttft_s), 1),
    }


def _run(options: argparse.Namespace) -> int:
    found = {policy: _measure(policy, options) for policy in options.policies.split(",")}
    print(
        f"{options.assignment}, {options.conversations} talks of {TURNS} turns, {options.rate:g} begun a second; "
        f"{ANSWER_TOKENS} tokens an answer, CPU time of one core, best of {options.rounds} rounds"
    )
    for policy, numbers in found.items():
        routes = ", ".join(f"{count} {route}" for route, count in numbers["routes"].items())
        print(
            f"  {policy:<10} {numbers['turns_per_minute']:>9,} turns/minute  (target {TARGET_TURNS_PER_MINUTE:,})"
            f"  {numbers['us_per_turn']:>6} µs a turn;  {routes}; median TTFT {numbers['ttft_median_ms']} ms"
        )
    if options.json:
        print(json.dumps(found))
    return 0
