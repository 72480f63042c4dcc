"""Readback on real pods: P reads a conversation's history from the decode pod that holds it, and the answer is right.

The history is put on a decode pod while no prefill pod may be used, so P has nothing of it and must read. Then the
decode pod is drained: the conversation moves, P <- old D, new D <- P. The reference is the plain pod, cold.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from gateway.core.pods import Role
from gateway.net import readback
from gateway.wire import readback as wire
from gateway.wire.contract import Api
from tests.vllm.support import (
    BLOCK_TOKENS,
    PATHS,
    Answer,
    Client,
    Dialogue,
    VllmCluster,
    WatchedGateway,
    gateway_before,
    lease_of,
    until,
    until_empty,
    words,
)

pytestmark = pytest.mark.vllm

Change = Callable[[Dialogue], None]


def as_it_is(dialogue: Dialogue) -> None:
    """The reply as text, which the tokenizer may cut into other tokens than the model made."""


def edited(dialogue: Dialogue) -> None:
    dialogue.messages[2]["content"] = words("quite another second question", 60)


def stripped(dialogue: Dialogue) -> None:
    """As a client does that cuts the reasoning off the replies."""
    for message in dialogue.messages:
        if message["role"] == "assistant":
            message["content"] = message["content"][-12:]


def truncated(dialogue: Dialogue) -> None:
    del dialogue.messages[:2]


def edited_early(dialogue: Dialogue) -> None:
    dialogue.messages[0]["content"] = "Again: " + dialogue.messages[0]["content"]


CHANGES = [as_it_is, edited, stripped, truncated, edited_early]


def allow(gateway: WatchedGateway, role: Role, allowed: bool, url: str | None = None) -> None:
    fleet = gateway.running.gateway.parts.fleet
    for pod in fleet.of(role):
        if url is None or pod.url == url:
            fleet.set_draining(pod, not allowed)


async def told(
    gateway: WatchedGateway, client: Client, api: Api, dialogue: Dialogue, salt: str, session: str, stream: bool
) -> Answer:
    body = dialogue.body(cache_salt=salt, return_token_ids=True, conversation_id=session, stream=stream)
    return await client.generate(gateway, api, body)


async def moved(
    vllm_cluster: VllmCluster, client: Client, api: Api, change: Change, stream: bool, *, render: bool = True
) -> tuple[Answer, Answer, WatchedGateway]:
    """Two turns on one decode pod, the history changed, the pod drained, a third turn; and the plain pod's answer."""
    dialogue, salt = Dialogue(api), uuid.uuid4().hex
    async with gateway_before(vllm_cluster, "local", readback=True) as gateway:
        if not render:
            gateway.running.gateway.parts.unrendered[vllm_cluster.prefill.url] = set(wire.RENDER_PATHS.values())
        allow(gateway, Role.PREFILL, False)
        for turn, count in ((1, 220), (2, 60)):
            dialogue.say(words(f"readback {api} {turn}", count))
            dialogue.hear((await told(gateway, client, api, dialogue, salt, salt, stream)).text)
        assert gateway.saw.last.route == "local"
        home = gateway.saw.last.answering
        allow(gateway, Role.PREFILL, True)
        allow(gateway, Role.DECODE, False, home)
        dialogue.say(words(f"readback {api} 3", 30))
        change(dialogue)
        answer = await told(gateway, client, api, dialogue, salt, salt, stream)
        right = await client.generate(
            vllm_cluster.plain, api, dialogue.body(cache_salt=uuid.uuid4().hex, return_token_ids=True)
        )
        assert gateway.saw.last.answering != home
    return answer, right, gateway


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("change", CHANGES)
async def test_a_moved_conversation_is_answered_as_one_plain_vllm_would(
    vllm_cluster: VllmCluster, client: Client, change: Change, stream: bool
) -> None:
    answer, right, gateway = await moved(vllm_cluster, client, Api.CHAT, change, stream)
    assert answer.prompt_token_ids == right.prompt_token_ids
    assert answer.token_ids == right.token_ids
    record = gateway.saw.last
    assert gateway.saw.faults == [] or change is not as_it_is
    if change is as_it_is:
        assert record.route == "readback"
        assert record.readback_tokens is not None
        assert record.readback_tokens > 5 * BLOCK_TOKENS
        assert (record.prefill_cached_tokens or 0) >= record.readback_tokens, "P read it instead of computing it"


@pytest.mark.parametrize("api", list(PATHS))
@pytest.mark.parametrize("render", [True, False], ids=["render", "tokenize"])
async def test_the_ids_may_come_from_either_endpoint(
    vllm_cluster: VllmCluster, client: Client, api: Api, render: bool
) -> None:
    answer, right, gateway = await moved(vllm_cluster, client, api, as_it_is, False, render=render)
    assert answer.prompt_token_ids == right.prompt_token_ids
    assert answer.token_ids == right.token_ids
    assert gateway.saw.last.route == "readback"
    assert gateway.saw.last.readback_tokens is not None


async def test_no_pod_keeps_blocks_for_anybody_afterwards(vllm_cluster: VllmCluster, client: Client) -> None:
    pods = (vllm_cluster.prefill, *vllm_cluster.decode)
    await until_empty(client, vllm_cluster.prefill)
    before = [await client.metric(pod, "kv_cache_usage_perc") for pod in pods]
    await moved(vllm_cluster, client, Api.CHAT, as_it_is, False)

    async def given_back() -> bool:
        now = [await client.metric(pod, "kv_cache_usage_perc") for pod in pods]
        return all(held <= held_before for held, held_before in zip(now, before, strict=True))

    await until(given_back, lease_of(vllm_cluster.prefill) / 2, "all blocks are given back, not left to the lease")


async def test_without_the_check_the_answer_is_wrong(
    vllm_cluster: VllmCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test of the tests above: blocks of other ids than the prompt's own (what passing on a decode pod's word for
    an edited history comes to) change the answer."""

    def of_other_ids(fields: wire.Fields, ids: list[int]) -> bytes:
        return real(fields, [(token + 1) % 4000 + 5 for token in ids])

    real = wire.recall_body
    monkeypatch.setattr(readback.wire, "recall_body", of_other_ids)
    answer, right, gateway = await moved(vllm_cluster, client, Api.CHAT, as_it_is, False)
    assert gateway.saw.last.readback_tokens is not None
    assert answer.prompt_token_ids == right.prompt_token_ids
    assert answer.token_ids != right.token_ids
