"""What the pods say of themselves before they are measured.

Rule of this room: questions that any vLLM answers; what a pod does not say is None, what makes profiling impossible is
a ProfileError.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from gateway.core.pods import Role
from gateway.ops import tls
from gateway.ops.config import Config
from gateway.ops.keys import load_upstream_key
from gateway.ops.profile.errors import ProfileError

_CACHE = re.compile(r"^vllm:cache_config_info\{([^}]*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
SIMULATOR_VERSION = "+sim"
"""In the version of a simulated pod (`0.32.0+sim`)."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One pod. cache_tokens: how many tokens its KV cache holds."""

    models: tuple[str, ...]
    max_model_len: int | None
    block_size: int | None
    cache_tokens: int | None
    simulated: bool


@dataclass(frozen=True, slots=True)
class Cluster:
    """All pods of a configuration. The token counts are the least of those that are known."""

    assignment: str
    model: str
    max_model_len: int | None
    block_size: int | None
    hot_tokens: int | None
    """What fits into the caches of all prefill pods, or of all decode pods if that is less."""
    simulated: bool


async def look_at(config: Config, model: str | None = None) -> Cluster:
    """Ask every prefill and decode pod. model: of those that they serve, if several."""
    prefill, decode = (config.count(role) for role in (Role.PREFILL, Role.DECODE))
    if not prefill or not decode:
        raise ProfileError(f"{prefill} prefill and {decode} decode pods: at least one of each is needed")
    asked = [(role, url) for role, url in config.pods if role is not Role.REPLICA]
    timeout = aiohttp.ClientTimeout(total=config.net.timeouts.connect_s + config.net.health.timeout_s)
    key, secured = load_upstream_key(config), tls.client_context(config)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    connector = None if secured is None else aiohttp.TCPConnector(ssl=secured)
    async with aiohttp.ClientSession(timeout=timeout, headers=headers, connector=connector) as session:
        facts = await asyncio.gather(*(_ask(session, url) for _, url in asked))
    simulated = {fact.simulated for fact in facts}
    if len(simulated) > 1:
        raise ProfileError("some of the pods are simulated and some are not")
    sizes = {fact.block_size for fact in facts} - {None}
    if len(sizes) > 1:
        raise ProfileError(f"the pods have different block sizes ({', '.join(map(str, sorted(sizes, key=str)))})")
    hot = [_total(facts, asked, role) for role in (Role.PREFILL, Role.DECODE)]
    return Cluster(
        assignment=f"{prefill}P_{decode}D",
        model=_common_model([(url, fact.models) for (_, url), fact in zip(asked, facts, strict=True)], model),
        max_model_len=_least([fact.max_model_len for fact in facts]),
        block_size=next(iter(sizes), None),
        hot_tokens=_least(hot),
        simulated=simulated.pop(),
    )


async def _ask(session: aiohttp.ClientSession, url: str) -> PodFacts:
    models = await _get(session, url, "/v1/models")
    try:
        cards = [msgspec.convert(card, _Card) for card in msgspec.json.decode(models or b"")["data"]]
    except (msgspec.MsgspecError, KeyError, TypeError):
        raise ProfileError(f"pod {url}: /v1/models is not a list of models") from None
    cache = _cache(await _get(session, url, "/metrics"))
    version = await _get(session, url, "/version")
    return PodFacts(
        tuple(card.id for card in cards),
        _least([card.max_model_len for card in cards]),
        cache.get("block_size"),
        cache["block_size"] * cache["num_gpu_blocks"] if len(cache) == 2 else None,
        SIMULATOR_VERSION.encode() in (version or b""),
    )


class _Card(msgspec.Struct):
    id: str
    max_model_len: int | None = None


async def _get(session: aiohttp.ClientSession, url: str, path: str) -> bytes | None:
    try:
        async with session.get(url + path) as response:
            return await response.read() if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ProfileError(f"pod {url} does not answer: {' '.join(str(error).split()) or 'time-out'}") from None


def _cache(page: bytes | None) -> dict[str, int]:
    """block_size and num_gpu_blocks, as far as they are known."""
    found = _CACHE.search((page or b"").decode(errors="replace"))
    labels: dict[str, Any] = dict(_LABEL.findall(found[1])) if found else {}
    wanted = ("block_size", "num_gpu_blocks")
    return {name: int(labels[name]) for name in wanted if labels.get(name, "").isdecimal()}


def _total(facts: Sequence[PodFacts], asked: Sequence[tuple[Role, str]], role: Role) -> int | None:
    tokens = [fact.cache_tokens for fact, (its_role, _) in zip(facts, asked, strict=True) if its_role is role]
    known = [count for count in tokens if count is not None]
    return sum(known) if len(known) == len(tokens) else None


def _common_model(served: Sequence[tuple[str, tuple[str, ...]]], wanted: str | None) -> str:
    common = [name for name in served[0][1] if all(name in models for _, models in served)]
    if wanted is None and common:
        return common[0]
    if wanted in common:
        return str(wanted)
    names = "; ".join(f"{url}: {', '.join(models) or 'none'}" for url, models in served)
    raise ProfileError(f"the pods do not all serve {'one model' if wanted is None else wanted} ({names})")


def _least(values: Sequence[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)
