"""Pods and conversations of one cell, on a virtual clock.

Rule of this room: pods are chosen by `gateway.core.decide`; a turn is what `gateway.net` would send, without HTTP.
Contexts are put in place by prompts that leave the same blocks in the caches of P and D as a first turn would.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.conversations import Conversation, Kind, Recognition
from gateway.core.decide import Plan, Request, decide
from gateway.core.pods import Fleet, Pod, Role
from gateway.core.policies import POLICIES, PolicyOptions
from gateway.core.residency import Residency
from gateway.ops.profile.plan import Shape
from loadtest.engine.core import Engine
from loadtest.engine.request import EngineOutput, EngineRequest, Finish, KvIntent
from loadtest.engine.segments import Segments
from loadtest.engine.virtual import VirtualCluster
from lut.cell import Route


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation after its first turn, and its context."""

    conversation: Conversation
    context: Segments


@dataclass(slots=True)
class Turn:
    """One measured turn on its way. tokens: of its answer, as last told. cached_tokens: as the answering pod says."""

    number: int
    pod: str
    request_id: str
    tokens: int = 0
    cached_tokens: int = 0


OnTurn = Callable[[Turn, float, Finish | None], None]
"""Told of the first token of the answer and of its end: the turn, the time, and how it ended if it did."""


class World:
    """`engines` by pod name, `p0`, `d0` and so on; they must be idle. The clock begins at 0."""

    def __init__(self, engines: dict[str, Engine], arm: Route, seed: str) -> None:
        self.cluster = VirtualCluster()
        self._engines = engines
        self._seed = seed
        self._policy = POLICIES[arm](PolicyOptions())
        pods = [Pod(name, Role.PREFILL if name.startswith("p") else Role.DECODE, up=True) for name in engines]
        self._fleet = Fleet(pods)
        self._residency = Residency()
        self._requests = 0
        self._segments = 0
        for name, engine in engines.items():
            self.cluster.add(name, engine)

    def prepare(self, shape: Shape, count: int) -> list[Talk]:
        """Put so many conversations in place, evenly, and wait until all is quiet."""
        talks = []
        for number in range(count):
            conversation = Conversation(f"{self._seed}/{number}".encode(), 0.0)
            plan = self._decide(Recognition(conversation, Kind.NEW, 1, 0), shape.context_tokens)
            assert plan.prefill is not None
            for pod in (plan.prefill, plan.answering):
                pod.take(shape.context_tokens)
            conversation.turn, conversation.context_tokens = 1, shape.context_tokens
            conversation.prefill, conversation.decode = plan.prefill.url, plan.answering.url
            conversation.homes = (plan.answering.url,)
            self._residency.used(plan.answering, conversation.key, shape.context_tokens)
            self._residency.used(plan.prefill, conversation.key, shape.context_tokens - shape.reply_tokens)
            prompt = Segments([(self._fresh(), shape.context_tokens - shape.reply_tokens)])
            reply = self._fresh()
            self._place(plan.prefill.url, prompt)
            # The last token of an answer is never computed.
            computed = prompt.extended(reply, shape.reply_tokens - 1) if shape.reply_tokens > 1 else prompt
            self._place(plan.answering.url, computed)
            talks.append(Talk(conversation, prompt.extended(reply, shape.reply_tokens)))
        self.cluster.run()
        return talks

    def turn(self, number: int, talk: Talk, shape: Shape, on_turn: OnTurn) -> Turn:
        """Begin the next turn of a conversation now."""
        prompt = talk.context.extended(self._fresh(), shape.new_tokens)
        plan = self._decide(Recognition(talk.conversation, Kind.NEXT, 2, shape.context_tokens), len(prompt))
        turn = Turn(number, plan.answering.url, self._name())
        if plan.prefill is None:
            self._answer(turn, prompt, shape, None, on_turn)
            return turn
        first_leg = EngineRequest(turn.request_id, prompt, 1, answer=self._fresh(), kv=KvIntent(do_remote_decode=True))
        turn.pod = plan.prefill.url

        def prefilled(now: float, output: EngineOutput) -> None:
            if output.finish is None:
                return
            if output.offer is None:
                on_turn(turn, now, Finish.ERROR)
                return
            turn.pod = plan.answering.url
            intent = KvIntent(do_remote_prefill=True, source=output.offer.source)
            self._answer(turn, prompt, shape, intent, on_turn)

        self.cluster.submit(turn.pod, first_leg, prefilled)
        return turn

    def abort(self, turn: Turn) -> None:
        self.cluster.abort(turn.pod, turn.request_id)

    def leave(self) -> None:
        """Let everything end, and empty the caches, so that the engines are as new."""
        self.cluster.run()
        for name, engine in self._engines.items():
            if engine.num_requests or not engine.reset_prefix_cache():
                raise RuntimeError(f"pod {name} is not quiet in the end")

    def _answer(self, turn: Turn, prompt: Segments, shape: Shape, kv: KvIntent | None, on_turn: OnTurn) -> None:
        def heard(now: float, output: EngineOutput) -> None:
            turn.tokens = output.num_tokens
            if output.prefill is not None:
                turn.cached_tokens = output.prefill.cached_tokens
            on_turn(turn, now, output.finish)

        request = EngineRequest(turn.request_id, prompt, shape.output_tokens, answer=self._fresh(), kv=kv)
        self.cluster.submit(turn.pod, request, heard)

    def _decide(self, recognition: Recognition, prompt_tokens: int) -> Plan:
        plan = decide(Request(prompt_tokens), recognition, self._fleet, self._policy, self._residency)
        assert plan is not None
        return plan

    def _place(self, pod: str, prompt: Segments) -> None:
        request = EngineRequest(self._name(), prompt, 1, answer=self._fresh())
        self.cluster.submit(pod, request, lambda *_: None)

    def _name(self) -> str:
        self._requests += 1
        return f"r{self._requests}"

    def _fresh(self) -> int:
        """A segment that nobody has said yet."""
        self._segments += 1
        return self._segments
