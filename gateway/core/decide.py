"""From a recognised request to a plan: which route, which pods, and why.

Rule of this room: bounded work, no I/O, no exceptions for bad luck; None means that no pod is up for it.
"""

from __future__ import annotations

import msgspec

from gateway.core.conversations import Conversation, Kind, Recognition
from gateway.core.placement import burden, cheapest, least_loaded
from gateway.core.pods import Fleet, Pod, Role
from gateway.core.policies import Policy, Route, TurnView
from gateway.core.residency import Residency, Source
from gateway.core.weights import BALANCED, Weights

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

    def full(self, pod: Pod) -> bool:
        """Whether a decode pod has as many requests as it may."""
        return 0 < self.decode_max_in_flight <= pod.in_flight


class Plan(msgspec.Struct, frozen=True):
    """What to do.

    answering: the pod whose answer the client gets. prefill: on routes PD and READBACK only. holder: on route READBACK,
    the pod that P reads from. resident_tokens: expected in the cache of the pod that will use them.
    rank: the DP rank of `answering` that holds the conversation, None where it does not matter.
    """

    route: Route
    prefill: Pod | None
    answering: Pod
    reason: str
    holder: Pod | None = None
    resident_tokens: int = 0
    rank: int | None = None


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
    keeper = fleet.get(request.only)
    if keeper is not None and keeper.up:
        route = Route.REPLICA if keeper.role is Role.REPLICA else Route.LOCAL
        return Plan(route, None, keeper, f"turn {recognition.turn}: what it goes on from is in the pod's memory")
    held = _held(recognition, fleet, residency)
    home = held.pod if held is not None else None
    if home is not None and home.role is Role.REPLICA and not home.draining:
        return Plan(Route.REPLICA, None, home, f"turn {recognition.turn}: its replica holds the conversation")
    if request.whole is not None:
        return _whole(request, conversation, fleet, home)
    turn = Turn(request, recognition, fleet, residency)
    if held is None or recognition.turn < 2 or not _worth_keeping(turn, held):
        kept = home if home is not None and recognition.kind is not Kind.BRANCH and not home.draining else None
        return _fresh(turn, kept, _why_fresh(turn, held))
    if held.pod.role is Role.REPLICA or held.pod.draining:
        return _move(turn, held, f"turn {recognition.turn}: {held.pod.url} is being drained")
    if held.pod.direct_off is not None:
        reason = f"turn {recognition.turn}: nothing goes straight to {held.pod.url}: {held.pod.direct_off}"
        return _through_prefill(turn, held, reason)
    choice = policy.choose(_view(turn, held))
    if choice.route is Route.READBACK:
        return _readback(turn, held, held.pod, choice.reason) or _through_prefill(turn, held, choice.reason)
    if choice.route is not Route.LOCAL:
        return _through_prefill(turn, held, choice.reason)
    if request.full(held.pod):
        reason = f"{choice.reason}; but {held.pod.url} has {held.pod.in_flight} requests in flight"
        return _move(turn, held, reason)
    return Plan(Route.LOCAL, None, held.pod, choice.reason, resident_tokens=held.tokens, rank=held.rank)


class Turn(msgspec.Struct, frozen=True):
    """What every step below needs."""

    request: Request
    recognition: Recognition
    fleet: Fleet
    residency: Residency

    @property
    def key(self) -> bytes:
        return self.recognition.conversation.key


def _held(recognition: Recognition, fleet: Fleet, residency: Residency) -> Held | None:
    """Of the pods that served the conversation and are up, the one with most of it; the last one wins a tie."""
    conversation = recognition.conversation
    best: Held | None = None
    for url in conversation.homes:
        pod = fleet.get(url)
        if pod is None or not fleet.admits(pod):
            continue
        found = residency.of(pod, conversation.key)
        tokens = min(found.tokens, recognition.shared_tokens)
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
        last_route=None if last is None else Route(last),
        weights=request.weights,
        readback=request.readback and any(pod.reads_back is not False for pod in turn.fleet.up(Role.PREFILL)),
    )


def _worth_keeping(turn: Turn, held: Held) -> bool:
    """True when the pod's cache is expected to help this turn enough."""
    if turn.recognition.kind is Kind.BRANCH and held.tokens < MIN_BRANCH_SHARE * turn.request.prompt_tokens:
        return False
    whole_blocks = _whole_blocks(turn, held)
    if turn.recognition.shared_tokens == 0:
        return False
    if whole_blocks == 0:
        return held.pod.epoch == turn.recognition.conversation.epoch
    return 0 < held.tokens >= turn.request.min_resident_share * whole_blocks


def _whole_blocks(turn: Turn, held: Held) -> int:
    """Tokens of the context that could be resident at all: a pod keeps whole blocks only."""
    size = turn.residency.cache(held.pod).block_size
    return turn.recognition.shared_tokens // size * size


def _why_fresh(turn: Turn, held: Held | None) -> str:
    recognition, conversation = turn.recognition, turn.recognition.conversation
    name = f"turn {recognition.turn}"
    if recognition.turn < 2 or conversation.decode is None:
        return f"{name}: nothing resident"
    if held is None:
        pod = turn.fleet.get(conversation.decode)
        state = "gets no traffic, it failed too often" if pod is not None and pod.up else "is down"
        return f"{name}: decode pod {conversation.decode} {state}"
    if held.tokens == 0 and held.pod.url == conversation.decode and held.pod.epoch != conversation.epoch:
        return f"{name}: decode pod {conversation.decode} was restarted"
    if recognition.kind is Kind.BRANCH:
        return f"{name}: the branch shares too little with what is resident"
    if recognition.shared_tokens == 0:
        return f"{name}: its prompt shares nothing with the turns before"
    if held.tokens == 0:
        return f"{name}: nothing resident on {held.pod.url} ({held.source})"
    kept, context = held.tokens, _whole_blocks(turn, held)
    return f"{name}: only {kept} of {context} tokens are left on {held.pod.url} ({held.source})"


def _whole(request: Request, conversation: Conversation, fleet: Fleet, home: Pod | None) -> Plan | None:
    pod = home or least_loaded([*fleet.up(Role.DECODE), *fleet.up(Role.REPLICA)], conversation.key)
    if pod is None:
        return None
    route = Route.REPLICA if pod.role is Role.REPLICA else Route.LOCAL
    return Plan(route, None, pod, f"{request.whole} does not survive a hand-over: whole on one pod")


def _fresh(turn: Turn, home: Pod | None, reason: str) -> Plan | None:
    """Place a conversation of which too little is resident: a P and D pair, or a replica if that is less loaded."""
    key, fleet = turn.key, turn.fleet
    decode = home
    if home is None or turn.request.full(home):
        decode = least_loaded(_with_room(turn), key)
        if home is not None and (decode is None or turn.request.full(decode)):
            decode = home
    replica = None if home is not None else least_loaded(fleet.up(Role.REPLICA), key)
    prefill = _prefill_pod(turn)
    if replica is not None and _prefers_replica(replica, prefill, decode, key):
        return Plan(Route.REPLICA, None, replica, f"{reason}; the replica is the least loaded")
    if decode is None:
        return None
    if prefill is None:
        return Plan(Route.LOCAL, None, decode, f"{reason}; no prefill pod is up")
    return Plan(Route.PD, prefill, decode, reason)


def _with_room(turn: Turn) -> list[Pod]:
    """The decode pods where a hand-over would not wait; where it would everywhere, those that may take it at all."""
    up = turn.fleet.up(Role.DECODE)
    free = [pod for pod in up if not turn.request.full(pod)] or up
    return [pod for pod in free if pod.facts.waiting == 0] or free


def _prefers_replica(replica: Pod, prefill: Pod | None, decode: Pod | None, key: bytes) -> bool:
    if prefill is None or decode is None:
        return True
    pair = max(prefill, decode, key=lambda pod: pod.load_tokens)
    if replica.load_tokens != pair.load_tokens:
        return replica.load_tokens < pair.load_tokens
    return least_loaded([decode, replica], key) is replica


def _prefill_pod(turn: Turn, *, reads_back: bool = False) -> Pod | None:
    """The P with the least before it: what is in flight there, and what of this prompt it would have to compute.

    reads_back: only those that can read from another pod, as far as is known.
    """
    pods = [pod for pod in turn.fleet.up(Role.PREFILL) if not reads_back or pod.reads_back is not False]
    if turn.recognition.turn < 2 or len(pods) < 2:
        return least_loaded(pods, turn.key)

    def tokens_before_answer(pod: Pod) -> int:
        resident = min(turn.residency.of(pod, turn.key).tokens, turn.recognition.shared_tokens)
        return burden(pod) + max(0, turn.request.prompt_tokens - resident)

    return cheapest(pods, turn.key, tokens_before_answer)


def _through_prefill(turn: Turn, held: Held, reason: str) -> Plan:
    """P, then the same D, which pulls only the blocks it lacks."""
    prefill = _prefill_pod(turn)
    if prefill is None:
        return Plan(
            Route.LOCAL, None, held.pod, f"{reason}; no prefill pod is up", resident_tokens=held.tokens, rank=held.rank
        )
    answering = held.pod
    if turn.request.full(answering):
        other = least_loaded(_with_room(turn), turn.key)
        answering = other if other is not None and not turn.request.full(other) else answering
    return Plan(Route.PD, prefill, answering, reason)


def _readback(turn: Turn, held: Held, answering: Pod, reason: str) -> Plan | None:
    """P reads the history from where it lies; None when that cannot be, or when P has it already."""
    prefill = _prefill_pod(turn, reads_back=True)
    if not turn.request.readback or prefill is None or held.pod.role is Role.PREFILL:
        return None
    if turn.residency.of(prefill, turn.key).tokens >= held.tokens:
        return None
    return Plan(Route.READBACK, prefill, answering, reason, holder=held.pod, resident_tokens=held.tokens)


def _move(turn: Turn, held: Held, reason: str) -> Plan | None:
    """To another decode pod that has room, without computing the history again where that can be."""
    limit = turn.request.decode_max_in_flight
    others = [
        pod
        for pod in turn.fleet.up(Role.DECODE)
        if pod is not held.pod and (limit == 0 or pod.in_flight < limit) and pod.direct_off is None
    ]
    other = least_loaded(others, turn.key)
    if other is None:
        if held.pod.role is Role.REPLICA:
            return Plan(Route.REPLICA, None, held.pod, f"{reason}; no other pod can take it")
        return _through_prefill(turn, held, reason)
    moved = f"{reason}: moves to {other.url}"
    plan = _readback(turn, held, other, f"{moved}, the history read back")
    if plan is not None:
        return plan
    prefill = _prefill_pod(turn)
    if prefill is None:
        return Plan(Route.LOCAL, None, other, f"{moved}; no prefill pod is up")
    return Plan(Route.PD, prefill, other, moved)
