"""What the pods themselves counted, read from their `/metrics` as one would from real vLLM pods.

Rule of this room: sums over a metric's samples and over pods; a metric that is not there is an error, not a zero.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

REQUESTS = "vllm:request_success_total"
KV_BYTES = "vllm:nixl_bytes_transferred_sum"
KV_READS = "vllm:nixl_bytes_transferred_count"


class CountersError(Exception):
    """A pod does not say what it counted."""


@dataclass(frozen=True, slots=True)
class Counted:
    """prefill_requests: that the prefill pods finished. kv_bytes, kv_reads: that the decode pods read from them."""

    prefill_requests: int
    kv_bytes: int
    kv_reads: int


async def read(prefill: Iterable[str], decode: Iterable[str]) -> Counted:
    """Ask all pods, given by URL. Raises CountersError."""
    async with httpx.AsyncClient(trust_env=False, timeout=10.0) as client:

        async def page(url: str) -> str:
            try:
                answer = await client.get(f"{url}/metrics")
                return answer.raise_for_status().text
            except httpx.HTTPError as error:
                raise CountersError(f"{url}/metrics: {type(error).__name__} {error}") from error

        lenders = await asyncio.gather(*(page(url) for url in prefill))
        readers = await asyncio.gather(*(page(url) for url in decode))
    return Counted(
        prefill_requests=round(sum(total(text, REQUESTS) for text in lenders)),
        kv_bytes=round(sum(total(text, KV_BYTES) for text in readers)),
        kv_reads=round(sum(total(text, KV_READS) for text in readers)),
    )


def total(text: str, sample_name: str) -> float:
    """The sum of a page's samples of that name. Raises CountersError when there is none."""
    values = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == sample_name
    ]
    if not values:
        raise CountersError(f"a pod has no metric {sample_name}")
    return sum(values)
