"""The main promise: through the gateway a conversation gets, token for token, what one plain vLLM says.

The reference is the plain pod with a fresh `cache_salt`, hence cold, for exactly the same messages.
"""

from __future__ import annotations

import uuid

import pytest

from gateway.wire.contract import Api
from gateway.wire.even import EvenChunks
from tests.vllm.support import MODEL, Client, Dialogue, VllmCluster, gateway_before, words

pytestmark = pytest.mark.vllm

CONVERSATIONS = [
    ("pd", Api.CHAT, "streamed", 3),
    ("pd", Api.CHAT, "whole", 2),
    ("pd", Api.COMPLETIONS, "streamed", 2),
    ("pd", Api.COMPLETIONS, "whole", 4),
    ("local", Api.CHAT, "streamed", 5),
    ("local", Api.CHAT, "whole", 3),
    ("local", Api.COMPLETIONS, "streamed", 4),
    ("local", Api.COMPLETIONS, "whole", 2),
]


@pytest.mark.parametrize(("policy", "api", "how", "turns"), CONVERSATIONS)
async def test_every_turn_says_what_one_plain_vllm_says(
    vllm_cluster: VllmCluster, client: Client, policy: str, api: Api, how: str, turns: int
) -> None:
    dialogue, salt = Dialogue(api), uuid.uuid4().hex
    async with gateway_before(vllm_cluster, policy) as gateway:
        for turn in range(1, turns + 1):
            dialogue.say(words(f"{policy} {api} {how} {turn}", 150 if turn == 1 else 40))
            request = dialogue.body(return_token_ids=True, stream=how == "streamed", cache_salt=salt)
            told = await client.generate(gateway, api, request)
            right = await client.generate(
                vllm_cluster.plain, api, dialogue.body(return_token_ids=True, cache_salt=uuid.uuid4().hex)
            )
            assert told.streamed == (how == "streamed")
            assert len(right.prompt_token_ids) > 4 * 32, "several blocks"
            assert told.prompt_token_ids == right.prompt_token_ids
            assert told.token_ids == right.token_ids, f"turn {turn}"
            assert told.text == right.text
            assert told.finish_reason == right.finish_reason
            dialogue.hear(told.text)
    assert [(record.turn, record.route) for record in gateway.saw.records] == [
        (turn, policy if turn > 1 else "pd") for turn in range(1, turns + 1)
    ]
    assert gateway.saw.faults == []


@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS])
async def test_most_of_a_stream_passes_as_the_chunks_it_came_in(
    vllm_cluster: VllmCluster, client: Client, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[bytes] = []
    takes = EvenChunks.takes

    def counted(self: EvenChunks, chunk: bytes) -> bool:
        if takes(self, chunk):
            passed.append(chunk)
            return True
        return False

    monkeypatch.setattr(EvenChunks, "takes", counted)
    dialogue = Dialogue(api)
    dialogue.say(words(f"chunks {api}", 60))
    async with gateway_before(vllm_cluster, "pd") as gateway:
        told = await client.generate(gateway, api, dialogue.body(stream=True, max_tokens=64, ignore_eos=True))
    right = await client.generate(vllm_cluster.plain, api, dialogue.body(max_tokens=64, ignore_eos=True))
    assert told.text == right.text
    assert len(passed) >= 32


async def test_an_edited_and_a_regenerated_turn_are_right_too(vllm_cluster: VllmCluster, client: Client) -> None:
    """What lies on the decode pod is then not, or not all, what the prompt says."""
    dialogue, salt = Dialogue(Api.CHAT), uuid.uuid4().hex
    async with gateway_before(vllm_cluster, "local") as gateway:

        async def turn() -> None:
            told = await client.generate(gateway, Api.CHAT, dialogue.body(cache_salt=salt, return_token_ids=True))
            right = await client.generate(
                vllm_cluster.plain, Api.CHAT, dialogue.body(cache_salt=uuid.uuid4().hex, return_token_ids=True)
            )
            assert told.token_ids == right.token_ids
            dialogue.hear(told.text)

        for number in (1, 2, 3):
            dialogue.say(words(f"edited {number}", 60))
            await turn()
        dialogue.messages.pop()
        await turn()
        dialogue.messages[2]["content"] = words("another second question", 60)
        del dialogue.messages[3:]
        await turn()
        dialogue.messages[0]["content"] = words("another first question", 60)
        dialogue.say("Once more.")
        await turn()
    assert gateway.saw.faults == []


@pytest.mark.parametrize("seed", ["one", "two", "three", "four"])
async def test_one_other_token_early_in_the_prompt_changes_the_text(
    vllm_cluster: VllmCluster, client: Client, seed: str
) -> None:
    """The test of the test: had a pod answered from KV that is wrong in one token, the text would be another."""
    answer = await client.post(vllm_cluster.plain, "/tokenize", {"model": MODEL, "prompt": words(seed, 150)})
    prompt = answer.body["tokens"]
    other = [*prompt[:5], prompt[5] + 1, *prompt[6:]]
    texts = [
        (await client.generate(vllm_cluster.plain, Api.COMPLETIONS, _request(ids))).text
        for ids in (prompt, prompt, other)
    ]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def _request(prompt: list[int]) -> dict[str, object]:
    return {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 24, "cache_salt": uuid.uuid4().hex}
