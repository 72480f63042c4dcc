"""The order in which those that wait are served."""

from __future__ import annotations

import math

import pytest

from gateway.core.admission.classes import ServiceClass, vllm_priority
from gateway.core.admission.queue import FairQueue, Waiter
from gateway.core.decide import Plan, Request

FIRST, S, B = ServiceClass.INTERACTIVE, ServiceClass.STANDARD, ServiceClass.BATCH


def waiter(
    tenant: str = "a",
    tokens: int = 100,
    service: ServiceClass = S,
    *,
    live: bool = False,
    share: float = 1.0,
    deadline_s: float = math.inf,
    model: str = "m",
) -> Waiter:
    def plan() -> Plan | None:
        return None

    request = Request(prompt_tokens=tokens - 1, output_tokens=1)
    return Waiter(tenant, model, service, request, plan, 0.0, live=live, share=share, deadline_s=deadline_s)


def queue_of(*waiters: Waiter) -> FairQueue:
    queue = FairQueue()
    for each in waiters:
        queue.add(each)
    return queue


def served(queue: FairQueue, count: int) -> list[Waiter]:
    order = []
    for _ in range(count):
        head = next(queue.heads())
        queue.serve(head)
        order.append(head)
    return order


def test_an_earlier_class_is_served_first_whatever_came_first() -> None:
    batch, standard, interactive = waiter(service=B), waiter(service=S), waiter(service=FIRST)
    assert served(queue_of(batch, standard, interactive), 3) == [interactive, standard, batch]


def test_within_a_tenant_a_live_conversation_goes_before_a_new_one_and_then_the_earliest_deadline() -> None:
    new, late, early, live = waiter(), waiter(deadline_s=9.0), waiter(deadline_s=3.0), waiter(live=True)
    assert served(queue_of(new, late, early, live), 4) == [live, early, late, new]


def test_equal_tenants_get_equal_tokens_however_many_requests_one_sends() -> None:
    flood = [waiter("loud") for _ in range(50)]
    quiet = [waiter("quiet") for _ in range(3)]
    order = served(queue_of(*flood, *quiet), 6)
    assert [each.tenant for each in order].count("quiet") == 3


def test_a_tenant_of_three_shares_gets_three_times_the_tokens() -> None:
    queue = queue_of(*(waiter("big", share=3.0) for _ in range(40)), *(waiter("small") for _ in range(40)))
    order = [each.tenant for each in served(queue, 40)]
    assert order.count("big") == 30
    assert order.count("small") == 10


def test_long_requests_count_for_their_tokens() -> None:
    queue = queue_of(*(waiter("long", 400) for _ in range(10)), *(waiter("short", 100) for _ in range(40)))
    tokens = {"long": 0, "short": 0}
    for each in served(queue, 25):
        tokens[each.tenant] += each.tokens
    assert abs(tokens["long"] - tokens["short"]) <= 400


def test_a_tenant_that_was_away_gets_no_credit_for_it() -> None:
    queue = queue_of(*(waiter("busy") for _ in range(20)))
    served(queue, 10)
    for _ in range(10):
        queue.add(waiter("late"))
    assert [each.tenant for each in served(queue, 10)].count("late") == 5


def test_leaving_the_queue_for_a_moment_wipes_no_debt() -> None:
    queue = queue_of(waiter("sly", 1000), waiter("other", 100), waiter("other", 100), waiter("other", 100))
    assert next(queue.heads()).tenant == "sly"
    queue.serve(next(queue.heads()))
    again = waiter("sly", 10)
    queue.add(again)
    assert [each.tenant for each in served(queue, 3)] == ["other", "other", "other"]


def test_who_leaves_is_not_served_and_counts_no_more() -> None:
    first, second = waiter(tokens=300), waiter(tokens=200)
    queue = queue_of(first, second)
    queue.remove(first)
    assert (len(queue), queue.tokens(S)) == (1, 200)
    assert served(queue, 1) == [second]
    assert list(queue.heads()) == []


def test_models_of_one_tenant_are_flows_of_their_own() -> None:
    queue = queue_of(waiter(model="x"), waiter(model="x"), waiter(model="y"))
    assert [head.model for head in queue.heads()] == ["x", "y"]


@pytest.mark.parametrize(
    ("newcomer", "tokens"),
    [
        (waiter("a"), 100 + 100 + 200),  # its own 100, the interactive 100, and as much of b as a's 200 allow
        (waiter("c"), 100 + 100 + 100),  # the earlier class, and one of each flow that came before
        (waiter("a", service=FIRST), 100),
        (waiter("c", service=B), 100 + 100 + 1000),
    ],
)
def test_what_is_ahead_of_a_newcomer_is_what_will_be_served_before_it(newcomer: Waiter, tokens: float) -> None:
    queue = queue_of(waiter("a"), *(waiter("b") for _ in range(10)), waiter("i", service=FIRST))
    assert queue.ahead(newcomer) == tokens
    queue.add(newcomer)
    before = 0
    while (head := next(queue.heads())) is not newcomer:
        before += head.tokens
        queue.serve(head)
    assert before == tokens


def test_the_one_to_go_is_of_the_last_class_and_the_greediest_tenant_and_comes_last() -> None:
    first, last = waiter("greedy", service=B, live=True), waiter("greedy", service=B)
    queue = queue_of(waiter("x", 5000), first, last, waiter("modest", 150, service=B))
    assert queue.worst() is last


def test_live_conversations_of_a_class_come_before_new_ones_in_vllms_own_queue() -> None:
    words = [vllm_priority(service, live=live) for service in (FIRST, S, B) for live in (True, False)]
    assert words == [0, 1, 2, 3, 4, 5]


def test_a_client_may_ask_for_a_later_class_and_never_for_an_earlier_one() -> None:
    assert [S.lowered(word) for word in (None, "interactive", "standard", "batch")] == [S, S, S, B]
    with pytest.raises(ValueError, match="urgent"):
        S.lowered("urgent")
