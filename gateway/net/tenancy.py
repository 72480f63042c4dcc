"""Whose request it is, what that tenant may use, and what it has used.

Rule of this room: a request waits for the shared quotas as long as for any shared state, once; whatever goes wrong,
this gateway's own accounts decide. What a tenant owes is settled behind the answer.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.core.admission.desk import MIN_RETRY_S
from gateway.core.admission.quotas import Over, Quotas
from gateway.core.tenants import Tenant, TenantBook
from gateway.net.admission import retry_after
from gateway.net.exchange import Incoming
from gateway.wire.errors import TooManyError, UnknownModelError

_WORDS = {
    "max_in_flight": "Too many requests of this tenant at once.",
    "requests_per_s": "Too many requests of this tenant.",
    "tokens_per_min": "Too many tokens of this tenant.",
}


class SharedQuotas(Protocol):
    """The accounts of all gateways together."""

    async def take(self, tenant: Tenant, tokens: float) -> Over | None:
        """Charge a request, or say which quota has no room. None where it is charged, and where nobody can be asked."""

    async def settle(self, tenant: Tenant, tokens: float) -> None:
        """Charge what was used beyond the estimate (below 0: give back)."""


@dataclass(slots=True)
class Charge:
    """What a request was charged. tenant: whose."""

    tenant: Tenant
    tokens: float
    open: bool = True


class Tenancy:
    """One gateway's tenants. book: may be exchanged at any time. shared: where there are other gateways."""

    def __init__(self, book: TenantBook) -> None:
        self.book = book
        self.quotas = Quotas()
        self.shared: SharedQuotas | None = None

    def of(self, incoming: Incoming) -> Tenant:
        """Who asks; without a key, everybody together is the tenant without a name."""
        caller = incoming.caller
        return self.book.default if caller is None else self.book.of(caller.tenant)

    async def charge(self, tenant: Tenant, tokens: float) -> Charge | None:
        """Charge a request by its estimate; None for a tenant without quotas. Raises TooManyError."""
        if not tenant.limited:
            return None
        over = self.quotas.over(tenant, tokens, time.monotonic())
        if over is None and self.shared is not None:
            over = await self.shared.take(tenant, tokens)
        if over is not None:
            self.quotas.account(tenant).refused += 1
            raise TooManyError(_WORDS[over.quota], headers=retry_after(max(MIN_RETRY_S, over.wait_s)))
        self.quotas.enter(tenant, tokens, time.monotonic())
        return Charge(tenant, tokens)

    def settle(self, charge: Charge, used: float) -> Coroutine[Any, Any, None] | None:
        """The request is over and used so many tokens. What is returned tells the other gateways; let it run."""
        if not charge.open:
            return None
        charge.open = False
        self.quotas.leave(charge.tenant, charge.tokens, used, time.monotonic())
        if self.shared is None or used == charge.tokens or not charge.tenant.tokens_per_min:
            return None
        return self.shared.settle(charge.tenant, used - charge.tokens)


def check_model(tenant: Tenant, model: str) -> None:
    """Raises UnknownModelError for a model that the tenant may not use."""
    if not tenant.may_use(model):
        raise UnknownModelError
