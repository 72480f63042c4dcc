"""Token buckets: what a tenant may use per second and per minute.

Rule of this room: a request is charged an estimate when it comes and the rest when it is known; a bucket may owe. What
is larger than a whole bucket may pass when the bucket is full.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.core.tenants import Tenant

MAX_TENANTS = 10_000


class Rate(NamedTuple):
    """per_s: what flows in. burst: the most that a bucket holds."""

    per_s: float
    burst: float


@dataclass(slots=True)
class Bucket:
    """level: what is there, below 0 when it owes; at_s: when that was so. A new one is full."""

    level: float | None = None
    at_s: float = 0.0

    def wait_s(self, rate: Rate, amount: float, now_s: float) -> float:
        """How long until so much may be taken; 0 is now."""
        lacking = min(amount, rate.burst) - self._filled(rate, now_s)
        return lacking / rate.per_s if lacking > 1e-9 else 0.0

    def take(self, rate: Rate, amount: float, now_s: float) -> None:
        """Take it (give it back, when below 0), whether it is there or not."""
        self.level = min(rate.burst, self._filled(rate, now_s) - amount)

    def _filled(self, rate: Rate, now_s: float) -> float:
        if self.level is None:
            self.level = rate.burst
        else:
            self.level = min(rate.burst, self.level + max(0.0, now_s - self.at_s) * rate.per_s)
        self.at_s = now_s
        return self.level


class Over(NamedTuple):
    """Which quota is used up, and in how many seconds it would do (0: not known)."""

    quota: str
    wait_s: float


@dataclass(slots=True)
class Account:
    """What one tenant uses. refused: by quota."""

    requests: Bucket = field(default_factory=Bucket)
    tokens: Bucket = field(default_factory=Bucket)
    in_flight: int = 0
    refused: int = 0


class Quotas:
    """The accounts of one gateway. A tenant that is forgotten (the one unseen for longest) has full buckets again."""

    def __init__(self) -> None:
        self._accounts: OrderedDict[str, Account] = OrderedDict()

    def __iter__(self) -> Iterator[tuple[str, Account]]:
        return iter(self._accounts.items())

    def account(self, tenant: Tenant) -> Account:
        found = self._accounts.get(tenant.name)
        if found is None:
            found = self._accounts[tenant.name] = Account()
            self._forget_idle()
        else:
            self._accounts.move_to_end(tenant.name)
        return found

    def over(self, tenant: Tenant, tokens: float, now_s: float) -> Over | None:
        """The quota that has no room for a request of so many tokens, None when all have."""
        account = self.account(tenant)
        if tenant.max_in_flight and account.in_flight >= tenant.max_in_flight:
            return Over("max_in_flight", 0.0)
        for name, bucket, rate, amount in _buckets(tenant, account, tokens):
            if (wait_s := bucket.wait_s(rate, amount, now_s)) > 0:
                return Over(name, wait_s)
        return None

    def enter(self, tenant: Tenant, tokens: float, now_s: float) -> None:
        """A request begins: it counts, and is charged."""
        account = self.account(tenant)
        account.in_flight += 1
        for _, bucket, rate, amount in _buckets(tenant, account, tokens):
            bucket.take(rate, amount, now_s)

    def leave(self, tenant: Tenant, charged: float, used: float, now_s: float) -> None:
        """It is over, and used so many tokens."""
        account = self.account(tenant)
        account.in_flight -= 1
        rate = tokens_of(tenant)
        if rate is not None and used != charged:
            account.tokens.take(rate, used - charged, now_s)

    def _forget_idle(self) -> None:
        while len(self._accounts) > MAX_TENANTS:
            idle = next((name for name, account in self._accounts.items() if account.in_flight == 0), None)
            if idle is None:
                return
            del self._accounts[idle]


def requests_of(tenant: Tenant) -> Rate | None:
    """Its quota of requests; a burst is at least one request."""
    per_s = tenant.requests_per_s
    return Rate(per_s, max(1.0, per_s * tenant.burst_s)) if per_s else None


def tokens_of(tenant: Tenant) -> Rate | None:
    """Its quota of prompt and output tokens."""
    per_s = tenant.tokens_per_min / 60
    return Rate(per_s, per_s * tenant.burst_s) if per_s else None


def _buckets(tenant: Tenant, account: Account, tokens: float) -> list[tuple[str, Bucket, Rate, float]]:
    found = []
    if (rate := requests_of(tenant)) is not None:
        found.append(("requests_per_s", account.requests, rate, 1.0))
    if (rate := tokens_of(tenant)) is not None:
        found.append(("tokens_per_min", account.tokens, rate, tokens))
    return found
