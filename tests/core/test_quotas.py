"""Token buckets and the accounts of tenants."""

from __future__ import annotations

import pytest

from gateway.core.admission.quotas import MAX_TENANTS, Bucket, Over, Quotas, Rate
from gateway.core.tenants import Tenant

TEN = Rate(10.0, 20.0)


def test_a_new_bucket_is_full_and_fills_at_its_rate() -> None:
    bucket = Bucket()
    assert bucket.wait_s(TEN, 20, 0.0) == 0
    bucket.take(TEN, 20, 0.0)
    assert bucket.wait_s(TEN, 5, 0.0) == pytest.approx(0.5)
    assert bucket.wait_s(TEN, 5, 0.5) == 0


def test_what_is_larger_than_a_bucket_passes_when_it_is_full_and_leaves_a_debt() -> None:
    bucket = Bucket()
    assert bucket.wait_s(TEN, 1000, 0.0) == 0
    bucket.take(TEN, 50, 0.0)
    assert bucket.wait_s(TEN, 1, 0.0) == pytest.approx(3.1)


def test_a_clock_that_stands_still_or_goes_back_fills_nothing() -> None:
    bucket = Bucket()
    bucket.take(TEN, 20, 5.0)
    assert bucket.wait_s(TEN, 10, 1.0) == pytest.approx(1.0)


def test_requests_per_second_are_refused_with_the_time_until_one_is_free() -> None:
    tenant, quotas = Tenant("t", requests_per_s=2.0, burst_s=1.0), Quotas()
    for _ in range(2):
        assert quotas.over(tenant, 10, 0.0) is None
        quotas.enter(tenant, 10, 0.0)
    assert quotas.over(tenant, 10, 0.0) == Over("requests_per_s", 0.5)
    assert quotas.over(tenant, 10, 0.5) is None


def test_tokens_are_settled_when_the_answer_is_known() -> None:
    tenant, quotas = Tenant("t", tokens_per_min=600.0, burst_s=10.0), Quotas()
    quotas.enter(tenant, 50, 0.0)
    quotas.leave(tenant, 50, 150, 0.0)
    assert quotas.account(tenant).tokens.level == pytest.approx(-50)
    quotas.enter(tenant, 50, 0.0)
    quotas.leave(tenant, 50, 0, 0.0)
    assert quotas.account(tenant).tokens.level == pytest.approx(-50)


def test_max_in_flight_counts_those_that_are_not_over() -> None:
    tenant, quotas = Tenant("t", max_in_flight=1), Quotas()
    quotas.enter(tenant, 1, 0.0)
    assert quotas.over(tenant, 1, 0.0) == Over("max_in_flight", 0.0)
    quotas.leave(tenant, 1, 1, 0.0)
    assert quotas.over(tenant, 1, 0.0) is None


def test_new_limits_keep_what_was_used() -> None:
    quotas = Quotas()
    quotas.enter(Tenant("t", requests_per_s=1.0, burst_s=1.0), 1, 0.0)
    assert quotas.over(Tenant("t", requests_per_s=4.0, burst_s=1.0), 1, 0.0) == Over("requests_per_s", 0.25)


def test_accounts_are_bounded_and_one_in_use_is_not_forgotten() -> None:
    quotas = Quotas()
    busy = Tenant("busy", max_in_flight=5)
    quotas.enter(busy, 1, 0.0)
    for number in range(MAX_TENANTS + 10):
        quotas.account(Tenant(f"t{number}", max_in_flight=5))
    assert len(list(quotas)) == MAX_TENANTS
    assert quotas.account(busy).in_flight == 1
