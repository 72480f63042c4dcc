"""The load test in front of real pods: the gateway beside one plain vLLM, on the same traffic."""

from __future__ import annotations

import pytest

from loadtest.live.client import Patience
from loadtest.live.endpoint import endpoint_of
from loadtest.live.run import Wishes, carry_out
from loadtest.live.schedule import Arrivals, Window
from loadtest.live.slo import Slo
from loadtest.live.talks import STREAMED, Synthetic
from tests.vllm.support import MODEL, VllmCluster, gateway_before

pytestmark = pytest.mark.vllm

TOKENS = 6
PATIENT = Patience(30.0, 120.0, 120.0)


def source(tokens_per_word: float) -> Synthetic:
    return Synthetic(2, 400, 30, TOKENS, 0.3, seed=1, tokens_per_word=tokens_per_word, fixed=True)


@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_the_gateway_beside_a_plain_pod(vllm_cluster: VllmCluster, api: str) -> None:
    """Four conversations of two turns, half of them each; what the pods say of tokens and caches comes through."""
    async with gateway_before(vllm_cluster, "local") as gateway:
        wishes = Wishes(
            endpoints=[endpoint_of(gateway.url), endpoint_of(f"{vllm_cluster.plain.url}/v1")],
            make_source=source,
            arrivals=Arrivals(0.5, poisson=False),
            window=Window(0.0, 9.5),
            api=api,
            models=[(MODEL, 1.0)],
            patience=PATIENT,
            fields=STREAMED | {"temperature": 0, "ignore_eos": True},
            slo=Slo(ttft_s=120.0),
            shows=False,
        )
        result, book = await carry_out(wishes)
        routes = [record.route for record in gateway.saw.records if record.turn == 2]
    assert [turn.fault for turn in book.records if not turn.ok] == []
    assert {(turn.arm, turn.turn) for turn in book.records} == {(0, 1), (0, 2), (1, 1), (1, 2)}
    assert {turn.tokens for turn in book.records} == {TOKENS}
    assert result.setup.tokens_per_word is not None
    assert 0.9 < result.setup.tokens_per_word < 5
    firsts = [turn.prompt_tokens for turn in book.records if turn.turn == 1 and turn.prompt_tokens is not None]
    assert 350 < sum(firsts) / len(firsts) < 550, "about as many tokens as were asked for"
    for arm in result.arms:
        later = arm.groups["turns 2+"]
        assert later.within_slo == 1.0
        assert later.cached_tokens is not None
        assert later.cached_tokens > later.prompt_tokens / 2, f"{arm.name} held the history"
    assert routes
    assert set(map(str, routes)) == {"local"}
