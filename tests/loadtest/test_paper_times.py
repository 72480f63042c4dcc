"""The H100 profile against the paper's published constants: summaries of the raw runs it was fitted to a part of."""

import pytest

from loadtest.engine import profile
from loadtest.engine.core import Engine
from loadtest.engine.kv_connector import KvConfig
from loadtest.engine.language import NumberLanguage
from loadtest.engine.request import EngineOutput, EngineRequest, KvIntent
from loadtest.engine.virtual import VirtualCluster

H100 = profile.load("h100-llama3.1-8b")


class Bench:
    """Pods `p` and `d`, and the times of the answers."""

    def __init__(self) -> None:
        self.cluster = VirtualCluster()
        for name in ("p", "d"):
            self.cluster.add(name, Engine(H100, NumberLanguage(), kv=KvConfig(name)))

    def ask(self, pod: str, name: str, prompt: list[int], max_tokens: int, kv=None) -> list[tuple[float, EngineOutput]]:
        """(milliseconds since it was asked, output)."""
        start, got = self.cluster.now, []
        request = EngineRequest(name, prompt, max_tokens, ignore_eos=True, kv=kv)
        self.cluster.submit(pod, request, lambda now, output: got.append(((now - start) * 1e3, output)))
        self.cluster.run(start + 60.0 if kv is None else start + 5.0)
        return got

    def prefill_then_decode(self, prompt: list[int], max_tokens: int = 16) -> tuple[float, float]:
        """(TTFT, TPOT) in ms through P and D."""
        leg = self.ask("p", "p", prompt, 1, KvIntent(do_remote_decode=True))
        first_ms, output = leg[-1]
        assert output.offer is not None
        answer = self.ask("d", "d", prompt, max_tokens, KvIntent(do_remote_prefill=True, source=output.offer.source))
        tpot = (answer[-1][0] - answer[0][0]) / (len(answer) - 1)
        return first_ms + answer[0][0], tpot


def tokens(count: int, first: int = 1) -> list[int]:
    return list(range(first, first + count))


def test_an_idle_decode_step_takes_7_7_to_8_ms():
    _, tpot = Bench().prefill_then_decode(tokens(128))
    assert tpot == pytest.approx(7.85, abs=0.25)


@pytest.mark.parametrize(("count", "measured_ms"), [(128, 32.0), (1024, 64.0)])
def test_idle_turn_one_on_a_replica(count, measured_ms):
    ((ttft, _),) = Bench().ask("d", "a", tokens(count), 1)
    assert ttft == pytest.approx(measured_ms, rel=0.12)


@pytest.mark.parametrize(("count", "low_ms", "high_ms"), [(128, 100.0, 104.0), (1024, 133.0, 151.0)])
def test_idle_turn_one_through_prefill_and_decode(count, low_ms, high_ms):
    ttft, _ = Bench().prefill_then_decode(tokens(count))
    assert 0.92 * low_ms <= ttft <= 1.08 * high_ms


def test_the_second_hop_costs_about_70_ms():
    ((alone, _),) = Bench().ask("d", "a", tokens(128), 1)
    ttft, _ = Bench().prefill_then_decode(tokens(128))
    assert ttft - alone == pytest.approx(70.0, abs=5.0)


@pytest.mark.parametrize(("context", "new"), [(256, 32), (256, 128), (2048, 128), (2048, 1024)])
def test_an_idle_local_follow_up_lies_within_the_papers_spread(context, new):
    """31 ms + 0.032 per new token + 0.0175 per context token, standard deviation 18 ms.

    Half of the context is turn 1's answer, which the benchmark brings back as other tokens than were generated.
    """
    bench = Bench()
    bench.ask("d", "turn1", tokens(context // 2), 1)
    prompt = [*tokens(context // 2), *tokens(context // 2 + new, first=9000)]
    ((ttft, output),) = bench.ask("d", "turn2", prompt, 1)
    assert output.prefill is not None
    assert output.prefill.cached_tokens == context // 2
    assert ttft == pytest.approx(31 + 0.032 * new + 0.0175 * context, abs=18)


@pytest.mark.parametrize(
    ("concurrency", "context", "low_ms", "high_ms"),
    [(3, 600, 8.1, 8.6), (10, 600, 8.9, 9.6), (16, 600, 9.4, 10.3), (42, 600, 12.2, 13.2), (42, 2500, 14.6, 15.6)],
)
def test_decode_steps_slow_down_with_concurrency_as_measured(concurrency, context, low_ms, high_ms):
    costs = H100.step
    step = costs.duration_s(
        prefill_tokens=0, attended_tokens=0, decode_sequences=concurrency, decode_context_tokens=concurrency * context
    )
    assert 0.9 * low_ms <= step * 1e3 <= 1.15 * high_ms


def test_a_megabyte_budget_of_kv_is_what_the_paper_says():
    """2K of context is about 256 MB per transfer; P90 of WildChat, 5,115 tokens, takes 4.5 ms on NVLink."""
    assert 2048 * H100.cache.bytes_per_token == 256 * 2**20
    assert 5115 * H100.cache.bytes_per_token / H100.transfer.bandwidth_bytes_per_s == pytest.approx(4.5e-3, rel=0.02)


def test_an_append_slows_a_batch_of_64_by_little():
    """1.5: 64 new tokens beside 64 decoders cost under 5 % of the decode time, spread over its 63 steps."""
    costs = H100.step
    plain = costs.duration_s(prefill_tokens=0, attended_tokens=0, decode_sequences=64, decode_context_tokens=64 * 2048)
    beside = costs.duration_s(
        prefill_tokens=64, attended_tokens=2048, decode_sequences=64, decode_context_tokens=64 * 2048
    )
    assert (beside - plain) / (63 * plain) < 0.05


def test_every_profile_loads():
    assert {"h100-llama3.1-8b", "instant"} <= set(profile.names())
    for name in profile.names():
        assert profile.load(name).name == name
    with pytest.raises(FileNotFoundError, match="h100"):
        profile.load("no-such-gpu")
