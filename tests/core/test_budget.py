"""How many requests are tried again."""

from __future__ import annotations

from gateway.core.budget import RetryBudget


def test_a_lone_request_may_be_tried_again() -> None:
    budget = RetryBudget()
    budget.request(0.0)
    assert all(budget.retry(0.0) for _ in range(4))


def test_under_load_no_more_than_a_fifth_is_tried_again() -> None:
    budget = RetryBudget()
    for _ in range(1000):
        budget.request(5.0)
    assert sum(budget.retry(5.0) for _ in range(1000)) == 200
    assert (budget.allowed, budget.denied) == (200, 800)


def test_with_little_traffic_the_floor_holds() -> None:
    budget = RetryBudget()
    assert sum(budget.retry(0.0) for _ in range(100)) == 10


def test_what_is_older_than_the_window_does_not_count() -> None:
    budget = RetryBudget()
    for second in range(10):
        for _ in range(100):
            budget.request(float(second))
    assert sum(budget.retry(9.0) for _ in range(1000)) == 200
    assert not budget.retry(12.0), "retries of 9 s are in the window still, requests of 0 to 2 s are not"
    assert sum(budget.retry(30.0) for _ in range(100)) == 10


def test_each_second_frees_its_own_share() -> None:
    budget = RetryBudget(share=0.2, floor=0)
    for _ in range(100):
        budget.request(0.0)
    assert sum(budget.retry(0.0) for _ in range(100)) == 20
    for _ in range(100):
        budget.request(5.0)
    assert sum(budget.retry(5.0) for _ in range(100)) == 20
    assert not budget.retry(9.9)
    assert not budget.retry(10.5), "of 5 s on there are 100 requests and 20 retries"


def test_a_clock_that_runs_on_for_long_costs_nothing() -> None:
    budget = RetryBudget()
    for hour in range(100):
        budget.request(hour * 3600.0)
    assert budget.retry(1e9)
