"""From a recognised request to a plan: which route, which pods, and why.

Rule of this room: bounded work, no I/O, no exceptions for bad luck; None means that no pod is up for it.
"""

from __future__ import annotations

import msgspec

from gateway.core.conversations import Conversation, Kind, Recognition
from gateway.core.load import Load
from gateway.core.placement import MOVE_RATIO, Costs, burden, cheapest, least_loaded
from gateway.core.pods import DECODE, PREFILL, REPLICA, Fleet, Pod
from gateway.core.policies import ROUTES, Choice, Policy, Route, TurnView
from gateway.core.reasons import ReasonClass
from gateway.core.residency import Residency, Source
from gateway.core.weights import BALANCED, Weights

NO_PREFILL_UP = "no prefill pod is up"
MIN_BRANCH_SHARE = 0.5
"""A branch that shares less of its prompt than this with its parent is placed like a new conversation."""


class Request(msgspec.Struct, frozen=True):
    """What the decision needs of a request.

    prompt_tokens, output_tokens: estimates. whole: why it cannot be handed over, if so.
    rate: turns per second at the gateway, now.
    decode_max_in_flight: a decode pod with so many requests takes no append-prefill; 0 is no limit.
    min_resident_share: a turn of whose context less than this is left on D goes through P.
    readback: whether P may read the history of this request from the pod that holds it.
    only: URL of the one pod that can answer it, which has the answer that it goes on from in memory.
    decode_max_tokens: a decode pod takes no more tokens of prompts at once, unless it is idle; 0 is no limit.
    """

    prompt_tokens: int
    whole: str | None = None
    output_tokens: int = 1
    rate: float = 0.0
    weights: Weights = BALANCED
    decode_max_in_flight: int = 0
    min_resident_share: float = 0.0
    readback: bool = False
    only: str | None = None
    decode_max_tokens: int = 0

    def full(self, pod: Pod) -> bool:
        """Whether a decode pod has as many requests, or tokens, as it may."""
        if self.decode_max_in_flight and self.crowded(pod):
            return True
        return 0 < self.decode_max_tokens < pod.load_tokens + self.prompt_tokens and pod.load_tokens > 0

    def crowded(self, pod: Pod) -> bool:
        """Whether a decode pod has as many requests as it may."""
        return 0 < self.decode_max_in_flight <= pod.in_flight


class Plan(msgspec.Struct, frozen=True):
    """What to do.

    answering: the pod whose answer the client gets. prefill: on routes PD and READBACK only. holder: on route READBACK,
    the pod that P reads from. resident_tokens: expected in the cache of the pod that will use them.
    rank: the DP rank of `answering` that holds the conversation, None where it does not matter.
    reason_class: what decided. choice: the policy's word, where it was asked.
    """

    route: Route
    prefill: Pod | None
    answering: Pod
    reason: str
    holder: Pod | None = None
    resident_tokens: int = 0
    rank: int | None = None
    reason_class: ReasonClass = ReasonClass.OTHER
    choice: Choice | None = None


class Held(msgspec.Struct, frozen=True):
    """The decode or replica pod a conversation lives on, and what it can use there.

    tokens: of this prompt in the pod's cache. source: who says so. rank: the DP rank that has them.
    """

    pod: Pod
    tokens: int
    source: Source
    rank: int | None


def decide(
    request: Request, recognition: Recognition, fleet: Fleet, policy: Policy, residency: Residency
) -> Plan | None:
    """Plan one request; None when no pod is up that could answer."""
    conversation = recognition.conversation
    keeper = None if request.only is None else fleet.get(request.only)
    if keeper is not None and keeper.up:
        route = Route.REPLICA if keeper.role is REPLICA else Route.LOCAL
        reason = f"turn {recognition.turn}: what it goes on from is in the pod's memory"
        return Plan(route, None, keeper, reason, reason_class=ReasonClass.PINNED)
    held = _held(recognition, fleet, residency) if conversation.homes else None
    home = held.pod if held is not None else None
    if home is not None and home.role is REPLICA and not home.draining:
        reason = f"turn {recognition.turn}: its replica holds the conversation"
        return Plan(Route.REPLICA, None, home, reason, reason_class=ReasonClass.REPLICA)
    if request.whole is not None:
        return _whole(request, conversation, fleet, home)
    loads = fleet.loads
    costs = None if loads is None else Costs(loads, request.weights, request.output_tokens, {})
    turn = Turn(request, recognition, fleet, residency, costs, conversation.key)
    if held is None or recognition.turn < 2 or not _worth_keeping(turn, held):
        kept = home if home is not None and recognition.kind is not Kind.BRANCH and not home.draining else None
        return _fresh(turn, kept, *_why_fresh(turn, held))
    if held.pod.role is REPLICA or held.pod.draining:
        return _move(turn, held, f"turn {recognition.turn}: {held.pod.url} is being drained", ReasonClass.DRAINING)
    if held.pod.direct_off is not None:
        reason = f"turn {recognition.turn}: nothing goes straight to {held.pod.url}: {held.pod.direct_off}"
        return _through_prefill(turn, held, reason, ReasonClass.DIRECT_OFF)
    choice = policy.choose(_view(turn, held))
    why = choice.reason_class
    if choice.route is not Route.LOCAL:
        if choice.route is Route.READBACK:
            plan = _readback(turn, held, held.pod, choice.reason, why, choice)
        else:
            plan = _elsewhere(turn, held, choice)
        return plan or _through_prefill(turn, held, choice.reason, why, choice)
    if request.full(held.pod):
        reason = f"{choice.reason}; but {held.pod.url} has {held.pod.in_flight} requests in flight"
        return _move(turn, held, reason, ReasonClass.FULL, choice)
    moved = _elsewhere(turn, held, choice)
    if moved is not None:
        return moved
    return Plan(Route.LOCAL, None, held.pod, choice.reason, None, held.tokens, held.rank, why, choice)


class Turn(msgspec.Struct, frozen=True):
    """What each step needs. costs: what it costs where, None where tokens in flight decide. key: the conversation's."""

    request: Request
    recognition: Recognition
    fleet: Fleet
    residency: Residency
    costs: Costs | None
    key: bytes

    def new_on(self, pod: Pod) -> int:
        """Tokens of the prompt that the pod would have to compute."""
        resident, shared = self.residency.tokens(pod, self.key), self.recognition.shared_tokens
        new = self.request.prompt_tokens - (resident if resident < shared else shared)
        return new if new > 1 else 1


def _held(recognition: Recognition, fleet: Fleet, residency: Residency) -> Held | None:
    """Of the pods that served the conversation and are up, the one with most of it; the last one wins a tie."""
    conversation = recognition.conversation
    best: Held | None = None
    for url in conversation.homes:
        pod = fleet.get(url)
        if pod is None or not fleet.admits(pod):
            continue
        found = residency.of(pod, conversation.key)
        tokens = found.tokens if found.tokens < recognition.shared_tokens else recognition.shared_tokens
        if best is None or tokens > best.tokens:
            best = Held(pod, tokens, found.source, found.rank)
    return best


def _view(turn: Turn, held: Held) -> TurnView:
    request, last = turn.request, turn.recognition.conversation.last_route
    return TurnView(
        turn=turn.recognition.turn,
        prompt_tokens=request.prompt_tokens,
        resident_tokens=held.tokens,
        output_tokens=request.output_tokens,
        rate=request.rate,
        assignment=turn.fleet.assignment,
        last_route=None if last is None else ROUTES[last],
        weights=request.weights,
        readback=request.readback and any(pod.reads_back is not False for pod in turn.fleet.up(PREFILL)),
        load=_load(turn, held),
        key=turn.key,
    )


def _load(turn: Turn, held: Held) -> Load | None:
    """What the turn would meet at its decode pod and at the P it would get."""
    loads = turn.fleet.loads
    if loads is None:
        return None
    prefill, prompt_tokens = _prefill_pod(turn, held.pod), turn.request.prompt_tokens
    new = max(1, prompt_tokens - held.tokens)
    return loads.of(prefill, held.pod, 1 if prefill is None else turn.new_on(prefill), new, new)


def _worth_keeping(turn: Turn, held: Held) -> bool:
    """True when the pod's cache is expected to help this turn enough."""
    if turn.recognition.kind is Kind.BRANCH and held.tokens < MIN_BRANCH_SHARE * turn.request.prompt_tokens:
        return False
    if turn.recognition.shared_tokens == 0:
        return False
    whole_blocks = _whole_blocks(turn, held)
    if whole_blocks == 0:
        return held.pod.epoch == turn.recognition.conversation.epoch
    return 0 < held.tokens >= turn.request.min_resident_share * whole_blocks


def _whole_blocks(turn: Turn, held: Held) -> int:
    """Tokens of the context that could be resident at all: a pod keeps whole blocks only."""
    size = turn.residency.cache(held.pod).block_size
    return turn.recognition.shared_tokens // size * size


def _why_fresh(turn: Turn, held: Held | None) -> tuple[str, ReasonClass]:
    recognition, conversation = turn.recognition, turn.recognition.conversation
    name = f"turn {recognition.turn}"
    if recognition.turn < 2 or conversation.decode is None:
        return f"{name}: nothing resident", ReasonClass.FIRST_TURN if recognition.turn < 2 else ReasonClass.COLD
    if held is None:
        pod = turn.fleet.get(conversation.decode)
        state = "gets no traffic, it failed too often" if pod is not None and pod.up else "is down"
        state = "was removed" if pod is None else state
        return f"{name}: decode pod {conversation.decode} {state}", ReasonClass.POD_DOWN
    if held.tokens == 0 and held.pod.url == conversation.decode and held.pod.epoch != conversation.epoch:
        return f"{name}: decode pod {conversation.decode} was restarted", ReasonClass.RESTARTED
    if recognition.kind is Kind.BRANCH:
        return f"{name}: the branch shares too little with what is resident", ReasonClass.BRANCH
    if recognition.shared_tokens == 0:
        return f"{name}: its prompt shares nothing with the turns before", ReasonClass.COLD
    if held.tokens == 0:
        return f"{name}: nothing resident on {held.pod.url} ({held.source})", ReasonClass.COLD
    kept, context = held.tokens, _whole_blocks(turn, held)
    return f"{name}: only {kept} of {context} tokens are left on {held.pod.url} ({held.source})", ReasonClass.COLD


def _whole(request: Request, conversation: Conversation, fleet: Fleet, home: Pod | None) -> Plan | None:
    kept = None if home is None or home.draining else home
    pod = kept or least_loaded([*fleet.up(DECODE), *fleet.up(REPLICA)], conversation.key) or home
    if pod is None:
        return None
    route = Route.REPLICA if pod.role is REPLICA else Route.LOCAL
    reason = f"{request.whole} does not survive a hand-over: whole on one pod"
    return Plan(route, None, pod, reason, reason_class=ReasonClass.WHOLE)


def _fresh(turn: Turn, home: Pod | None, reason: str, why: ReasonClass) -> Plan | None:
    """Place a conversation of which too little is resident: a P and D pair, or a replica if that is less loaded."""
    fleet, request = turn.fleet, turn.request
    decode, replica = home, None
    if home is None or request.full(home):
        decode = _calmest(turn, _with_room(turn))
    if home is None:
        replicas = fleet.up(REPLICA)
        replica = _calmest(turn, replicas, whole=True) if replicas else None
        if fleet.pairs.held and decode is not None and not fleet.fitting(fleet.up(PREFILL), decode):
            decode = _calmest(turn, _with_a_partner(turn)) or decode
    elif decode is None or request.full(decode):
        decode = home
    prefill = _prefill_pod(turn, decode)
    if replica is not None and _prefers_replica(turn, replica, prefill, decode):
        reason = f"{reason}; the replica is the least loaded"
        return Plan(Route.REPLICA, None, replica, reason, reason_class=ReasonClass.REPLICA)
    if decode is None:
        return None
    if prefill is None:
        return _without_prefill(turn, decode, reason)
    return Plan(Route.PD, prefill, decode, reason, reason_class=why)


def _without_prefill(turn: Turn, decode: Pod, reason: str) -> Plan:
    lacking = "no prefill pod has handed over to it since a restart" if turn.fleet.up(PREFILL) else NO_PREFILL_UP
    return Plan(Route.LOCAL, None, decode, f"{reason}; {lacking}", reason_class=ReasonClass.NO_PREFILL)


def _with_a_partner(turn: Turn) -> list[Pod]:
    """The decode pods with room that some prefill pod may hand over to."""
    prefills = turn.fleet.up(PREFILL)
    return [pod for pod in _with_room(turn) if turn.fleet.fitting(prefills, pod)]


def _with_room(turn: Turn) -> list[Pod]:
    """The decode pods where a hand-over would not wait; where it would everywhere, those that may take it at all."""
    free, request = turn.fleet.up(DECODE), turn.request
    if request.decode_max_in_flight or request.decode_max_tokens:
        free = [pod for pod in free if not request.full(pod)] or free
    return [pod for pod in free if pod.facts.waiting == 0] or free


def _calmest(turn: Turn, pods: list[Pod], *, whole: bool = False) -> Pod | None:
    """The pod where the answer comes at least cost. whole: its prompt is computed there, too."""
    costs = turn.costs
    if costs is None:
        return least_loaded(pods, turn.key)
    if whole:
        return cheapest(pods, turn.key, lambda pod: costs.whole(pod, turn.request.prompt_tokens))
    return cheapest(pods, turn.key, costs.decode)


def _elsewhere(turn: Turn, held: Held, choice: Choice) -> Plan | None:
    """A plan to move the conversation, where another decode pod is so much less busy that it pays; else None."""
    costs, request = turn.costs, turn.request
    if costs is None:
        return None
    new = max(1, request.prompt_tokens - held.tokens)
    if costs.whole(held.pod, new) <= MOVE_RATIO * costs.usual(held.pod, new):
        return None
    others = [pod for pod in _with_room(turn) if pod is not held.pod and pod.direct_off is None]
    other = _calmest(turn, others)
    prefill = None if other is None else _prefill_pod(turn, other)
    if other is None or prefill is None:
        return None
    new_on_prefill = turn.new_on(prefill)
    stay = costs.whole(held.pod, new)
    if choice.route is not Route.LOCAL:
        stay = costs.pair(prefill, held.pod, new_on_prefill, new)
    if not costs.pays(stay, costs.pair(prefill, other, new_on_prefill, request.prompt_tokens)):
        return None
    return _move(turn, held, f"{choice.reason}; but {held.pod.url} is busy", ReasonClass.MOVED, choice)


def _prefers_replica(turn: Turn, replica: Pod, prefill: Pod | None, decode: Pod | None) -> bool:
    if prefill is None or decode is None:
        return True
    key, costs, prompt_tokens = turn.key, turn.costs, turn.request.prompt_tokens
    if costs is not None:
        return costs.whole(replica, prompt_tokens) < costs.pair(prefill, decode, turn.new_on(prefill), prompt_tokens)
    pair = max(prefill, decode, key=lambda pod: pod.load_tokens)
    if replica.load_tokens != pair.load_tokens:
        return replica.load_tokens < pair.load_tokens
    return least_loaded([decode, replica], key) is replica


def _prefill_pod(turn: Turn, decode: Pod | None, *, reads_back: bool = False) -> Pod | None:
    """The P with the least before it: what is in flight there, and what of this prompt it would have to compute.

    decode: the pod that it hands over to. reads_back: only those that can read from another pod, as far as is known.
    """
    pods = turn.fleet.up(PREFILL)
    if reads_back:
        pods = [pod for pod in pods if pod.reads_back is not False]
    if decode is not None:
        pods = turn.fleet.fitting(pods, decode)
    costs = turn.costs
    if costs is not None:
        return costs.best_prefill(pods, turn.key, turn.new_on)
    if turn.recognition.turn < 2 or len(pods) < 2:
        return least_loaded(pods, turn.key)

    residency, key = turn.residency, turn.key
    prompt_tokens, shared = turn.request.prompt_tokens, turn.recognition.shared_tokens

    def tokens_before_answer(pod: Pod) -> int:
        resident = residency.tokens(pod, key)
        new = prompt_tokens - (resident if resident < shared else shared)
        return burden(pod) + (new if new > 0 else 0)

    return cheapest(pods, turn.key, tokens_before_answer)


def _through_prefill(turn: Turn, held: Held, reason: str, why: ReasonClass, choice: Choice | None = None) -> Plan:
    """P, then the same D, which pulls only the blocks it lacks."""
    answering = held.pod
    if turn.request.full(answering):
        other = _calmest(turn, _with_room(turn))
        answering = other if other is not None and not turn.request.full(other) else answering
    prefill = _prefill_pod(turn, answering)
    if prefill is None:
        plan = _without_prefill(turn, held.pod, reason)
        return msgspec.structs.replace(plan, resident_tokens=held.tokens, rank=held.rank, choice=choice)
    return Plan(Route.PD, prefill, answering, reason, reason_class=why, choice=choice)


def _readback(
    turn: Turn, held: Held, answering: Pod, reason: str, why: ReasonClass, choice: Choice | None = None
) -> Plan | None:
    """P reads the history from where it lies; None when that cannot be, or when P has it already."""
    prefill = _prefill_pod(turn, answering, reads_back=True)
    if not turn.request.readback or prefill is None or held.pod.role is PREFILL:
        return None
    if turn.residency.tokens(prefill, turn.key) >= held.tokens:
        return None
    return Plan(Route.READBACK, prefill, answering, reason, held.pod, held.tokens, None, why, choice)


def _move(turn: Turn, held: Held, reason: str, why: ReasonClass, choice: Choice | None = None) -> Plan | None:
    """To another decode pod that has room, without computing the history again where that can be."""
    up, full = turn.fleet.up(DECODE), turn.request.full
    others = [pod for pod in up if pod is not held.pod and not full(pod) and pod.direct_off is None]
    other = _calmest(turn, others)
    if other is None:
        if held.pod.role is REPLICA:
            reason = f"{reason}; no other pod can take it"
            return Plan(Route.REPLICA, None, held.pod, reason, reason_class=ReasonClass.REPLICA)
        return _through_prefill(turn, held, reason, why, choice)
    moved = f"{reason}: moves to {other.url}"
    plan = _readback(turn, held, other, f"{moved}, the history read back", why, choice)
    if plan is not None:
        return plan
    prefill = _prefill_pod(turn, other)
    if prefill is None:
        return _without_prefill(turn, other, moved)
    return Plan(Route.PD, prefill, other, moved, reason_class=why, choice=choice)
