"""A gateway in virtual time: one turn from its arrival to its last token.

Rule of this room: who it is, where its KV lies, which route, which pods, what after a failure: `gateway.core` says,
with the same arguments as in `gateway.net`. Only the legs are carried out here, on engines in place of HTTP. Lengths
of answers and of prompts are the gateway's estimates, never the script's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import xxhash

from gateway.core.budget import RetryBudget
from gateway.core.conversations import ConversationStore, Recognition, TurnResult
from gateway.core.decide import Plan, Request, decide
from gateway.core.estimates import BytesPerToken, prompt_tokens
from gateway.core.fallback import Attempts, Leg
from gateway.core.outputs import OutputLengths
from gateway.core.pods import Fleet, Pod, Seat
from gateway.core.policies import MeasuredTable, Policy, Route, Seen
from gateway.core.rates import RequestRate
from gateway.core.residency import Expectation, Residency
from gateway.core.weights import BALANCED, Weights
from loadtest.engine.request import EngineOutput, EngineRequest, Finish, KvIntent, KvSource
from loadtest.engine.segments import Segments
from loadtest.engine.virtual import VirtualCluster
from loadtest.experiments.fleet import Watch
from loadtest.experiments.outcomes import Fate

MODEL = "m"
_ROOT = xxhash.xxh3_128_digest(b"experiments")
_MIN_READBACK_TOKENS = 64
"""As `gateway.net.readback.MIN_TOKENS`."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """What the operator set, as `gateway.ops.settings` has it."""

    weights: Weights = BALANCED
    decode_max_in_flight: int = 0
    min_resident_share: float = 0.5
    readback: bool = False


@dataclass(slots=True)
class Ask:
    """One turn that a client sends. prompt: all of it; answer: the segment that its answer will be.

    on_first, on_end: told when the first token is there, and how it ended.
    """

    conversation: str
    tenant: bytes
    prompt: Segments
    prompt_bytes: int
    output_tokens: int
    answer: int
    on_first: Callable[[Ask], None]
    on_end: Callable[[Ask, Fate], None]
    number: int = 0
    started: bool = False
    over: bool = False
    cached_tokens: int = 0
    plan: Plan | None = None
    expected_tokens: int = 0
    recognition: Recognition | None = None
    attempts: Attempts | None = None
    seat: Seat | None = None
    prefill_seat: Seat | None = None
    running: tuple[str, str] | None = None
    """(pod, request id) of the leg that is under way."""
    sent_s: float = 0.0
    asked_s: float = 0.0
    first_s: float = 0.0
    prefilled_s: float = 0.0
    readback_tokens: int = 0
    prefill_cached: int | None = None
    notes: dict[str, Expectation] = field(default_factory=dict)


@dataclass
class Gate:
    """All of one gateway's state. Call `begin` on its watch before the first turn."""

    cluster: VirtualCluster
    fleet: Fleet
    policy: Policy
    watch: Watch
    knobs: Knobs = field(default_factory=Knobs)

    def __post_init__(self) -> None:
        self.residency = Residency()
        self.store = ConversationStore(1_000_000, 3600.0, self.residency.forget)
        self.outputs = OutputLengths()
        self.bytes_per_token = BytesPerToken()
        self.rate = RequestRate(0.0)
        self.budget = RetryBudget()
        self.readback_tokens = 0
        self._asks = 0

    # ---- what a client does

    def ask(self, ask: Ask) -> None:
        """A turn comes in now."""
        now = self.cluster.now
        self._asks += 1
        ask.number, ask.asked_s = self._asks, now
        recognition = self.store.recognise(_ROOT, ask.conversation, None, b"", now)
        ask.recognition = recognition
        conversation = recognition.conversation
        self.rate.count(now)
        expected = prompt_tokens(recognition, MODEL, ask.prompt_bytes, self.bytes_per_token)
        ask.expected_tokens = expected
        knobs = self.knobs
        request = Request(
            prompt_tokens=expected,
            output_tokens=self.outputs.expect(conversation.recent_outputs, ask.tenant, None),
            rate=self.rate.per_second(now),
            weights=knobs.weights,
            decode_max_in_flight=knobs.decode_max_in_flight,
            min_resident_share=knobs.min_resident_share,
            readback=knobs.readback,
        )
        self.store.begin(conversation)
        self.budget.request(now)
        self.watch.wake_breakers()
        self._admit(ask, request, recognition)

    def _admit(self, ask: Ask, request: Request, recognition: Recognition) -> None:
        """Let it in."""
        self._go(ask, recognition, decide(request, recognition, self.fleet, self.policy, self.residency))

    def _go(self, ask: Ask, recognition: Recognition, plan: Plan | None) -> None:
        """Carry a plan out; None: no pod is up."""
        if plan is None:
            self._end(ask, Fate.FAILED)
            return
        conversation = recognition.conversation
        self.store.bind(conversation, plan.prefill.url if plan.prefill else None, plan.answering.url)
        self._carry_out(ask, plan)

    def abort(self, ask: Ask) -> None:
        """The client has left."""
        if ask.over:
            return
        if ask.running is not None:
            self.cluster.abort(*ask.running)
        self._over(ask)

    # ---- legs

    def _carry_out(self, ask: Ask, plan: Plan) -> None:
        assert ask.recognition is not None
        key = ask.recognition.conversation.key
        ask.plan, ask.prefill_cached, ask.readback_tokens = plan, None, 0
        computing = 0 if plan.prefill is not None else ask.expected_tokens - plan.resident_tokens
        ask.seat = Seat(plan.answering, ask.expected_tokens, computing)
        ask.notes[plan.answering.url] = self.residency.expect(plan.answering, key)
        if plan.prefill is None:
            self._answer(ask, None)
            return
        ask.notes[plan.prefill.url] = self.residency.expect(plan.prefill, key)
        if plan.holder is not None and self._recall(ask, plan.holder, plan.resident_tokens):
            return
        self._prefill(ask, None)

    def _recall(self, ask: Ask, holder: Pod, resident_tokens: int) -> bool:
        """Have the pod that holds the history keep its blocks for P. False where there is too little to read."""
        size = self.residency.cache(holder).block_size
        tokens = min(resident_tokens, len(ask.prompt) - 1) // size * size
        if tokens < max(_MIN_READBACK_TOKENS, size):
            return False

        def kept(now: float, output: EngineOutput) -> None:
            if output.finish is None:
                return
            ask.running = None
            if output.offer is None:
                self._prefill(ask, None)
                return
            ask.readback_tokens = tokens
            self._prefill(ask, output.offer.source)

        request = EngineRequest(
            f"{ask.number}r", _beginning(ask.prompt, tokens), 1, answer=0, kv=KvIntent(do_remote_decode=True)
        )
        self._submit(ask, holder, request, kept)
        return True

    def _prefill(self, ask: Ask, source: KvSource | None) -> None:
        assert ask.plan is not None
        pod = ask.plan.prefill
        assert pod is not None
        resident = ask.notes[pod.url].ledger if source is None else ask.plan.resident_tokens
        shared = ask.recognition.shared_tokens if ask.recognition is not None else 0
        computing = max(1, ask.expected_tokens - min(resident, shared))
        seat_there = ask.prefill_seat = Seat(pod, ask.expected_tokens, computing)
        ask.sent_s = self.cluster.now

        def prefilled(now: float, output: EngineOutput) -> None:
            if output.finish is None:
                return
            ask.running = None
            seat, ask.prefill_seat = ask.prefill_seat, None
            if seat is not None:
                seat.leave()
            if output.offer is None:
                self._failed(ask, Leg.PREFILL, pod)
                return
            self.watch.praise(pod)
            ask.prefilled_s = now
            if self.fleet.loads is not None:
                self.fleet.loads.first_token(pod, seat_there.ahead + seat_there.pending, now - ask.sent_s)
            if output.prefill is not None:
                cached = output.prefill.cached_local
                self.watch.outliers.timed(pod, now - ask.sent_s, output.prefill.prompt_tokens - cached, now)
                ask.prefill_cached = None if source is not None else cached
            if source is not None:
                pod.reads_back = True
            self._answer(ask, KvIntent(do_remote_prefill=True, source=output.offer.source))

        kv = KvIntent(do_remote_decode=True, source=source)
        self._submit(
            ask, pod, EngineRequest(f"{ask.number}p{self._count(ask)}", ask.prompt, 1, answer=0, kv=kv), prefilled
        )

    def _answer(self, ask: Ask, kv: KvIntent | None) -> None:
        assert ask.plan is not None
        pod = ask.plan.answering
        ask.sent_s = self.cluster.now

        def heard(now: float, output: EngineOutput) -> None:
            if output.prefill is not None and not ask.started:
                ask.started = True
                ask.first_s = now
                self._first_token(ask, pod, kv is not None)
                ask.cached_tokens = output.prefill.cached_tokens
                if kv is None:
                    new = output.prefill.prompt_tokens - ask.cached_tokens
                    self.watch.outliers.timed(pod, now - ask.sent_s, new, now)
                ask.on_first(ask)
            if output.finish is None or ask.over:
                return
            ask.running = None
            if output.finish is not Finish.ERROR:
                self._learn(ask, pod, kv)
            elif ask.started:
                self._notice(pod)
                self._end(ask, Fate.FAILED)
            else:
                self._failed(ask, Leg.ANSWER, pod)

        request = EngineRequest(
            f"{ask.number}a{self._count(ask)}", ask.prompt, ask.output_tokens, answer=ask.answer, kv=kv
        )
        self._submit(ask, pod, request, heard)

    def _submit(
        self, ask: Ask, pod: Pod, request: EngineRequest, listener: Callable[[float, EngineOutput], None]
    ) -> None:
        ask.running = (pod.url, request.request_id)
        self.cluster.submit(pod.url, request, listener)

    @staticmethod
    def _count(ask: Ask) -> int:
        return 0 if ask.attempts is None else ask.attempts.count

    # ---- ends

    def _failed(self, ask: Ask, leg: Leg, pod: Pod) -> None:
        """Nothing has reached the client: what next?"""
        assert ask.plan is not None
        assert ask.recognition is not None
        self._notice(pod)
        self._leave(ask)
        if ask.attempts is None:
            ask.attempts = Attempts(ask.recognition.conversation.key, self.fleet)
        following = ask.attempts.after(ask.plan, leg, "connect" if not pod.up else "reset")
        if following is None or not self.budget.retry(self.cluster.now):
            self._end(ask, Fate.FAILED)
            return
        self._carry_out(ask, following)

    def _notice(self, pod: Pod) -> None:
        if not self.cluster.load(pod.url).up:
            self.watch.lost(pod)
        self.watch.blame(pod)

    def _first_token(self, ask: Ask, pod: Pod, handed_over: bool) -> None:
        loads, seat = self.fleet.loads, ask.seat
        if seat is None:
            return
        seat.began()
        if loads is not None and handed_over:
            loads.moved(len(ask.prompt), self.cluster.now - ask.prefilled_s)
        elif loads is not None:
            loads.first_token(pod, seat.ahead + seat.pending, self.cluster.now - ask.sent_s)

    def _learn_pace(self, ask: Ask, pod: Pod, plan: Plan) -> None:
        """What the policy and the loads are told of a turn that ended well."""
        now, output = self.cluster.now, ask.output_tokens
        tpot_s = (now - ask.first_s) / (output - 1) if output > 1 else None
        if self.fleet.loads is not None and tpot_s is not None:
            self.fleet.loads.per_token(pod, pod.in_flight, tpot_s)
        choice = plan.choice
        if isinstance(self.policy, MeasuredTable) and choice is not None and choice.route is plan.route:
            self.policy.learn(Seen(choice, len(ask.prompt), output, ask.first_s - ask.asked_s, tpot_s), now)

    def _learn(self, ask: Ask, pod: Pod, kv: KvIntent | None) -> None:
        plan, recognition = ask.plan, ask.recognition
        assert plan is not None
        assert recognition is not None
        prompt, output = len(ask.prompt), ask.output_tokens
        self.watch.praise(pod)
        self._learn_pace(ask, pod, plan)
        key, shared = recognition.conversation.key, recognition.shared_tokens
        self.store.finish(
            recognition,
            None,
            TurnResult(
                prefill=plan.prefill.url if plan.prefill else None,
                decode=pod.url,
                epoch=pod.epoch,
                route=plan.route if plan.route is Route.LOCAL else Route.PD,
                prompt_tokens=prompt,
                output_tokens=output,
                reply_head=None,
                prompt_bytes=ask.prompt_bytes,
            ),
        )
        self.bytes_per_token.learn(MODEL, ask.prompt_bytes, prompt)
        self.outputs.learn(ask.tenant, output)
        residency = self.residency
        if kv is None:
            residency.learn(pod, key, ask.notes[pod.url], shared, prompt, ask.cached_tokens)
        if plan.prefill is not None:
            if ask.prefill_cached is not None:
                residency.learn(plan.prefill, key, ask.notes[plan.prefill.url], shared, prompt, ask.prefill_cached)
            residency.used(plan.prefill, key, prompt)
        residency.used(pod, key, prompt + output)
        self.readback_tokens += ask.readback_tokens
        self._leave(ask)
        ask.over = True
        ask.on_end(ask, Fate.GOOD)

    def _end(self, ask: Ask, fate: Fate) -> None:
        self._over(ask)
        ask.on_end(ask, fate)

    def _over(self, ask: Ask) -> None:
        """It did not end well."""
        ask.over = True
        self._leave(ask)
        assert ask.recognition is not None
        self.store.fail(ask.recognition.conversation)

    @staticmethod
    def _leave(ask: Ask) -> None:
        for seat in (ask.seat, ask.prefill_seat):
            if seat is not None:
                seat.leave()
        ask.seat = ask.prefill_seat = None


def _beginning(prompt: Segments, tokens: int) -> Segments:
    shorter = Segments()
    shorter.spans = tuple((first, min(end, tokens), name) for first, end, name in prompt.spans if first < tokens)
    shorter.length = tokens
    return shorter
