"""Quotas that several gateways share, in Redis or Valkey.

Rule of this room: one question per request, answered within `timeout_s` or not at all; the server's clock is the
clock of the buckets, so that gateways need not agree on the time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from gateway.core.admission.quotas import Over, Rate, requests_of, tokens_of
from gateway.core.tenants import Tenant
from gateway.net.breaker import Breaker
from gateway.net.redis_link import LinkError, RedisLink

_TAKE = """local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1000000
local ask = ARGV[#ARGV] == '1'
local levels = {}
for i = 1, #KEYS do
  local rate, burst, amount = tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
  local found = redis.call('HMGET', KEYS[i], 'level', 'at')
  local level = burst
  if found[1] then
    level = math.min(burst, tonumber(found[1]) + math.max(0, now - tonumber(found[2])) * rate)
  end
  local lacking = math.min(amount, burst) - level
  if ask and lacking > 0.000000001 then
    return {i, tostring(lacking / rate)}
  end
  levels[i] = math.min(burst, level - amount)
end
for i = 1, #KEYS do
  local rate, burst = tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i - 1])
  redis.call('HSET', KEYS[i], 'level', tostring(levels[i]), 'at', string.format('%.6f', now))
  redis.call('EXPIRE', KEYS[i], math.ceil((burst - levels[i]) / rate) + 60)
end
return {0, '0'}"""
"""Takes from all buckets or none. A key that is gone is a full bucket, which is why it may expire when it is full."""

Amount = tuple[str, Rate, float]


class QuotaState:
    """`tenancy.SharedQuotas` on a server. on_count: told (op, result), as `SharedState` counts."""

    def __init__(
        self,
        link: RedisLink,
        timeout_s: float,
        on_count: Callable[[str, str], None] = lambda op, result: None,
        report: Callable[[bool, str], None] = lambda there, why: None,
    ) -> None:
        self._link = link
        self._timeout_s = timeout_s
        self._count = on_count
        self.breaker = Breaker(report)

    async def take(self, tenant: Tenant, tokens: float) -> Over | None:
        amounts = _amounts(tenant, tokens)
        found = await self._run(tenant, amounts, ask=True) if amounts else None
        return None if found is None or found[0] == 0 else Over(amounts[found[0] - 1][0], found[1])

    async def settle(self, tenant: Tenant, tokens: float) -> None:
        await self._run(tenant, [amount for amount in _amounts(tenant, tokens) if amount[0] == _TOKENS], ask=False)

    async def _run(self, tenant: Tenant, amounts: Sequence[Amount], *, ask: bool) -> tuple[int, float] | None:
        """(number of the bucket that lacks, seconds until it does not), (0, 0) when taken; None for no answer."""
        if not self.breaker.allows(time.monotonic()):
            self._count("quota", "skipped")
            return None
        keys = [f"quota:{name}:{tenant.name}".encode() for name, _, _ in amounts]
        numbers = [number for _, rate, amount in amounts for number in (rate.per_s, rate.burst, amount)]
        try:
            async with asyncio.timeout(self._timeout_s):
                which, wait = await self._link.run(_TAKE, keys, [*numbers, int(ask)])
        except TimeoutError:
            self._failed("timeout", f"no answer within {self._timeout_s * 1000:g} ms")
        except LinkError as error:
            self._failed("error", str(error))
        else:
            self.breaker.succeeded()
            self._count("quota", "ok")
            return int(which), float(wait)
        return None

    def _failed(self, result: str, why: str) -> None:
        self._count("quota", result)
        self.breaker.failed(time.monotonic(), why)


_REQUESTS, _TOKENS = "requests_per_s", "tokens_per_min"


def _amounts(tenant: Tenant, tokens: float) -> list[Amount]:
    rates = ((_REQUESTS, requests_of(tenant), 1.0), (_TOKENS, tokens_of(tenant), tokens))
    return [(name, rate, amount) for name, rate, amount in rates if rate is not None]
