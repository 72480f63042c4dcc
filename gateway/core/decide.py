"""From a recognised request to a plan: which route, which pods, and why.

Rule of this room: bounded work, no I/O, no exceptions for bad luck; None means that no pod is up for it.
"""

from __future__ import annotations

import msgspec

from gateway.core.conversations import Conversation, Kind, Recognition
from gateway.core.placement import least_loaded
from gateway.core.pods import Fleet, Pod, Role
from gateway.core.policies import Policy, Route, TurnView
from gateway.core.weights import BALANCED, Weights

MIN_BRANCH_SHARE = 0.5
"""A branch that shares less of its prompt than this with its parent is placed like a new conversation."""


class Request(msgspec.Struct, frozen=True):
    """What the decision needs of a request.

    prompt_tokens, output_tokens: estimates. whole: why it cannot be handed over, if so.
    rate: turns per second at the gateway, now.
    decode_max_in_flight: a decode pod with so many requests takes no append-prefill; 0 is no limit.
    """

    prompt_tokens: int
    whole: str | None = None
    output_tokens: int = 1
    rate: float = 0.0
    weights: Weights = BALANCED
    decode_max_in_flight: int = 0


class Plan(msgspec.Struct, frozen=True):
    """What to do. `answering` is the pod whose answer the client gets; `prefill` is there on route PD only."""

    route: Route
    prefill: Pod | None
    answering: Pod
    reason: str


def decide(request: Request, recognition: Recognition, fleet: Fleet, policy: Policy) -> Plan | None:
    """Plan one request; None when no pod is up that could answer."""
    conversation = recognition.conversation
    home = _home(conversation, fleet)
    if home is not None and home.role is Role.REPLICA:
        return Plan(Route.REPLICA, None, home, f"turn {recognition.turn}: its replica holds the conversation")
    if request.whole is not None:
        return _whole(request, conversation, fleet, home)
    resident = _resident_tokens(conversation, home)
    if home is None or recognition.turn < 2 or not _worth_keeping(request, recognition.kind, resident):
        kept = None if recognition.kind is Kind.BRANCH else home
        return _fresh(conversation, fleet, kept, _why_fresh(recognition, home))
    choice = policy.choose(_view(request, recognition, resident, fleet))
    if choice.route is not Route.LOCAL:
        return _through_prefill(conversation, fleet, home, choice.reason)
    if 0 < request.decode_max_in_flight <= home.in_flight:
        reason = f"{choice.reason}; but {home.url} has {home.in_flight} requests in flight"
        return _through_prefill(conversation, fleet, home, reason)
    return Plan(Route.LOCAL, None, home, choice.reason)


def _view(request: Request, recognition: Recognition, resident_tokens: int, fleet: Fleet) -> TurnView:
    last = recognition.conversation.last_route
    return TurnView(
        turn=recognition.turn,
        prompt_tokens=request.prompt_tokens,
        resident_tokens=resident_tokens,
        output_tokens=request.output_tokens,
        rate=request.rate,
        assignment=fleet.assignment,
        last_route=None if last is None else Route(last),
        weights=request.weights,
    )


def _home(conversation: Conversation, fleet: Fleet) -> Pod | None:
    pod = fleet.get(conversation.decode)
    return pod if pod is not None and pod.up else None


def _resident_tokens(conversation: Conversation, home: Pod | None) -> int:
    """Tokens of the conversation expected in its decode pod's cache: none once that pod's process was replaced."""
    if home is None or home.epoch != conversation.epoch:
        return 0
    return conversation.resident_tokens


def _worth_keeping(request: Request, kind: Kind, resident_tokens: int) -> bool:
    """True when the decode pod's cache is expected to help this turn."""
    if kind is Kind.BRANCH:
        return resident_tokens >= MIN_BRANCH_SHARE * request.prompt_tokens
    return resident_tokens > 0


def _why_fresh(recognition: Recognition, home: Pod | None) -> str:
    conversation = recognition.conversation
    if recognition.turn < 2 or conversation.decode is None:
        return f"turn {recognition.turn}: nothing resident"
    if home is None:
        return f"turn {recognition.turn}: decode pod {conversation.decode} is down"
    if home.epoch != conversation.epoch:
        return f"turn {recognition.turn}: decode pod {conversation.decode} was restarted"
    if recognition.kind is Kind.BRANCH:
        return f"turn {recognition.turn}: the branch shares too little with what is resident"
    return f"turn {recognition.turn}: nothing resident on {conversation.decode}"


def _whole(request: Request, conversation: Conversation, fleet: Fleet, home: Pod | None) -> Plan | None:
    pod = home or least_loaded([*fleet.up(Role.DECODE), *fleet.up(Role.REPLICA)], conversation.key)
    if pod is None:
        return None
    route = Route.REPLICA if pod.role is Role.REPLICA else Route.LOCAL
    return Plan(route, None, pod, f"{request.whole} does not survive a hand-over: whole on one pod")


def _fresh(conversation: Conversation, fleet: Fleet, home: Pod | None, reason: str) -> Plan | None:
    """Place a conversation that has nothing resident: a P and D pair, or a replica if that is less loaded."""
    key = conversation.key
    decode = home or least_loaded(fleet.up(Role.DECODE), key)
    replica = None if home is not None else least_loaded(fleet.up(Role.REPLICA), key)
    prefill = least_loaded(fleet.up(Role.PREFILL), key)
    if replica is not None and _prefers_replica(replica, prefill, decode, key):
        return Plan(Route.REPLICA, None, replica, f"{reason}; the replica is the least loaded")
    if decode is None:
        return None
    if prefill is None:
        return Plan(Route.LOCAL, None, decode, f"{reason}; no prefill pod is up")
    return Plan(Route.PD, prefill, decode, reason)


def _prefers_replica(replica: Pod, prefill: Pod | None, decode: Pod | None, key: bytes) -> bool:
    if prefill is None or decode is None:
        return True
    pair = max(prefill, decode, key=lambda pod: pod.load_tokens)
    if replica.load_tokens != pair.load_tokens:
        return replica.load_tokens < pair.load_tokens
    return least_loaded([decode, replica], key) is replica


def _through_prefill(conversation: Conversation, fleet: Fleet, home: Pod, reason: str) -> Plan:
    """P again, the same one where it is up: its own prefix cache holds the earlier turns."""
    prefill = fleet.get(conversation.prefill)
    if prefill is None or not prefill.up:
        prefill = least_loaded(fleet.up(Role.PREFILL), conversation.key)
    if prefill is None:
        return Plan(Route.LOCAL, None, home, f"{reason}; no prefill pod is up")
    return Plan(Route.PD, prefill, home, reason)
