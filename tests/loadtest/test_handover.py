"""KV hand-over between engines under a virtual clock: leases, reads, and what wrong KV does."""

import dataclasses

import pytest

from loadtest.engine import profile
from loadtest.engine.core import Engine
from loadtest.engine.kv_connector import KvConfig
from loadtest.engine.language import NumberLanguage
from loadtest.engine.profile import TransferCosts
from loadtest.engine.request import EngineOutput, EngineRequest, Finish, KvIntent, KvSource
from loadtest.engine.transfer import Link
from loadtest.engine.virtual import VirtualCluster

PROFILE = profile.load("instant").with_cache(block_size=4, num_blocks=32)
LEG_ONE = KvIntent(do_remote_decode=True)
PROMPT = list(range(100, 118))
"""18 tokens: four whole blocks of 4 and one of 2."""


class Pair:
    """One prefill and one decode engine, `p` and `d`."""

    def __init__(self, used=PROFILE, **config) -> None:
        self.cluster = VirtualCluster()
        self.engines = {name: Engine(used, NumberLanguage(), kv=KvConfig(name, **config)) for name in ("p", "d")}
        for name, engine in self.engines.items():
            self.cluster.add(name, engine)
        self.outputs: list[tuple[float, EngineOutput]] = []

    def ask(self, pod: str, name: str, prompt=PROMPT, kv=None, max_tokens=1, run=True) -> list[EngineOutput]:
        got: list[EngineOutput] = []
        request = EngineRequest(name, prompt, max_tokens, ignore_eos=True, kv=kv)
        self.cluster.submit(pod, request, lambda _, output: got.append(output))
        if run:
            self.cluster.run(self.cluster.now + 1.0)
        return got

    def free(self, pod: str) -> int:
        return self.engines[pod].pool.num_free

    def source(self, outputs: list[EngineOutput]) -> KvSource:
        offer = outputs[-1].offer
        assert offer is not None
        return offer.source


def read_from(source: KvSource) -> KvIntent:
    return KvIntent(do_remote_prefill=True, source=source)


def text(outputs: list[EngineOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def test_leg_one_pins_the_prompt_and_says_where_it_lies():
    pair = Pair()
    source = pair.source(pair.ask("p", "a", kv=LEG_ONE))
    assert (source.engine_id, source.request_id, source.num_tokens) == ("p", "a", 18)
    assert len(source.block_ids) == 5
    assert source.cached_tokens == 0
    assert pair.free("p") == 27


def test_leg_two_gives_the_same_answer_and_frees_the_prefill_pod():
    pair = Pair()
    alone = Pair().ask("d", "x", max_tokens=6)
    source = pair.source(pair.ask("p", "a", kv=LEG_ONE))
    answer = pair.ask("d", "b", kv=read_from(source), max_tokens=6)
    assert text(answer) == text(alone)
    assert answer[0].prefill is not None
    assert (answer[0].prefill.cached_local, answer[0].prefill.cached_remote) == (0, 18)
    assert pair.free("p") == 32
    assert pair.free("d") == 32


def test_the_decode_pod_reads_only_the_blocks_it_lacks():
    pair = Pair()
    pair.ask("d", "warm", prompt=PROMPT[:9])
    source = pair.source(pair.ask("p", "a", kv=LEG_ONE))
    pair.engines["d"].submit(EngineRequest("b", PROMPT, 1, kv=read_from(source)), 0.0)
    (order,) = pair.engines["d"].step(0.0).pulls
    assert order.block_ids == source.block_ids[2:]
    assert order.counts == (4, 4, 2)
    assert order.num_bytes == 3 * 4 * 131072


def test_a_lease_runs_out_after_30_seconds_and_frees():
    pair = Pair(lease_s=30.0)
    pair.ask("p", "a", kv=LEG_ONE)
    pair.cluster.run(29.9)
    assert pair.free("p") == 27
    pair.cluster.run(30.1)
    assert pair.free("p") == 32
    assert pair.engines["p"].connector.leases.num_expired == 1


def test_a_heartbeat_adds_20_seconds_from_now():
    pair = Pair(lease_s=30.0)
    pair.ask("p", "a", kv=LEG_ONE)
    leases = pair.engines["p"].connector.leases
    assert leases.renew("a", 5.0)
    assert leases.next_expiry_s == 30.0, "25 would be earlier than what it had"
    assert leases.renew("a", 25.0)
    assert leases.next_expiry_s == 45.0
    assert not leases.renew("nobody", 0.0)


def test_reading_after_the_lease_still_works_while_the_blocks_are_untouched():
    pair = Pair(lease_s=30.0)
    source = pair.source(pair.ask("p", "a", kv=LEG_ONE))
    pair.cluster.run(31.0)
    pair.cluster.now = 31.0
    answer = pair.ask("d", "b", kv=read_from(source), max_tokens=6)
    assert text(answer) == text(Pair().ask("d", "x", max_tokens=6))
    assert pair.engines["p"].connector.leases.num_released_late == 1


def test_reading_blocks_that_were_given_to_someone_else_answers_wrongly_without_an_error():
    pair = Pair(lease_s=30.0)
    source = pair.source(pair.ask("p", "a", kv=LEG_ONE))
    pair.cluster.run(31.0)
    pair.cluster.now = 31.0
    pair.ask("p", "other", prompt=list(range(500, 620)))
    answer = pair.ask("d", "b", kv=read_from(source), max_tokens=6)
    assert answer[-1].finish is Finish.LENGTH
    assert text(answer) != text(Pair().ask("d", "x", max_tokens=6))


def test_kv_of_another_prompt_never_gives_the_right_answer():
    pair = Pair()
    source = pair.source(pair.ask("p", "a", prompt=[1, *PROMPT[1:]], kv=LEG_ONE))
    answer = pair.ask("d", "b", kv=read_from(source), max_tokens=6)
    assert text(answer) != text(Pair().ask("d", "x", max_tokens=6))


def test_wrong_kv_stays_wrong_in_the_decode_pods_prefix_cache():
    """vLLM names blocks by the request's tokens, not by what was read: a bad hand-over poisons later turns."""
    pair = Pair()
    source = pair.source(pair.ask("p", "a", prompt=[1, *PROMPT[1:]], kv=LEG_ONE))
    pair.ask("d", "b", kv=read_from(source))
    later = pair.ask("d", "c", max_tokens=6)
    assert later[0].prefill is not None
    assert later[0].prefill.cached_tokens == 16
    assert text(later) != text(Pair().ask("d", "x", max_tokens=6))


def test_an_unknown_engine_ends_the_request_with_an_error_and_frees_its_blocks():
    pair = Pair()
    nowhere = KvSource("nobody", "r", "h", 1, (1, 2, 3, 4, 5), 18)
    (output,) = pair.ask("d", "b", kv=read_from(nowhere))
    assert output.finish is Finish.ERROR
    assert pair.free("d") == 32


def test_with_the_recompute_policy_a_failed_read_is_computed_instead():
    pair = Pair(recompute_on_failure=True)
    nowhere = KvSource("nobody", "r", "h", 1, (1, 2, 3, 4, 5), 18)
    answer = pair.ask("d", "b", kv=read_from(nowhere), max_tokens=6)
    assert text(answer) == text(Pair().ask("d", "x", max_tokens=6))


def test_a_request_without_a_full_address_is_computed_locally():
    pair = Pair()
    answer = pair.ask("d", "b", kv=KvIntent(do_remote_prefill=True), max_tokens=6)
    assert text(answer) == text(Pair().ask("d", "x", max_tokens=6))


def test_aborting_leg_two_during_the_read_frees_both_pods():
    slow = dataclasses.replace(PROFILE, transfer=TransferCosts(1e9, 0.0, 5.0))
    pair = Pair(slow)
    source = pair.source(pair.ask("p", "a", kv=LEG_ONE))
    pair.ask("d", "b", kv=read_from(source))
    assert pair.engines["d"].connector.num_pulling == 1
    pair.cluster.abort("d", "b")
    assert pair.free("d") == 27, "the read is under way; its blocks stay until it is done"
    pair.cluster.run(10.0)
    assert (pair.free("d"), pair.free("p")) == (32, 32)


def test_aborting_leg_two_before_it_is_scheduled_frees_the_prefill_pod():
    pair = Pair(dataclasses.replace(PROFILE, request=dataclasses.replace(PROFILE.request, fixed_s=1.0)))
    source_outputs = pair.ask("p", "a", kv=LEG_ONE)
    pair.cluster.run(2.0)
    source = pair.source(source_outputs)
    assert pair.free("p") == 27
    pair.ask("d", "b", kv=read_from(source), run=False)
    pair.cluster.abort("d", "b")
    pair.cluster.run(pair.cluster.now + 0.5)
    assert pair.free("p") == 32


def test_leg_one_that_is_aborted_pins_nothing():
    pair = Pair()
    pair.ask("p", "a", kv=LEG_ONE, max_tokens=50, run=False)
    pair.cluster.abort("p", "a")
    pair.cluster.run(1.0)
    assert pair.free("p") == 32
    assert len(pair.engines["p"].connector.leases) == 0


def test_a_longer_prompt_than_was_prefilled_cannot_be_read():
    pair = Pair()
    source = pair.source(pair.ask("p", "a", kv=LEG_ONE))
    (output,) = pair.ask("d", "b", prompt=[*PROMPT, *range(8)], kv=read_from(source))
    assert output.finish is Finish.ERROR


class TestReadback:
    """`bidirectional_kv_xfer`: P reads the history back from D (vllm.md, section 2)."""

    def turns(self, second: list[int], cut: int | None = None):
        pair = Pair(bidirectional=True, recompute_threshold_tokens=4)
        first = pair.source(pair.ask("p", "a", kv=LEG_ONE))
        answer = pair.ask("d", "b", kv=read_from(first), max_tokens=8)
        offer = answer[-1].offer
        assert offer is not None
        assert not offer.from_prefill
        source = offer.source
        assert source.num_tokens == 25, "18 + 8 tokens, of which the last was sampled, not computed"
        if cut is not None:
            source = dataclasses.replace(source, num_tokens=cut, block_ids=source.block_ids[: cut // 4])
        pair.engines["p"].reset_prefix_cache()
        prompt = second or [*PROMPT, *text(answer), 7, 7, 7]
        leg = pair.ask("p", "c", prompt=prompt, kv=KvIntent(do_remote_decode=True, source=source))
        return pair, prompt, leg

    def test_the_prefill_pod_reads_the_history_and_computes_the_rest(self):
        pair, prompt, leg = self.turns([])
        assert leg[0].prefill is not None
        assert leg[0].prefill.cached_tokens == 25
        assert text(leg) == text(Pair().ask("d", "x", prompt=prompt))
        assert len(pair.engines["d"].connector.leases) == 0, "single use"

    def test_a_history_that_is_not_what_d_holds_gives_a_wrong_answer(self):
        edited = [*PROMPT[:10], 1, *PROMPT[11:], *range(20)]
        _, prompt, leg = self.turns(edited)
        assert text(leg) != text(Pair().ask("d", "x", prompt=prompt))

    def test_cut_to_the_common_blocks_the_answer_is_right_again(self):
        edited = [*PROMPT[:10], 1, *PROMPT[11:], *range(20)]
        _, prompt, leg = self.turns(edited, cut=8)
        assert leg[0].prefill is not None
        assert leg[0].prefill.cached_tokens == 8
        assert text(leg) == text(Pair().ask("d", "x", prompt=prompt))


def test_a_link_sends_one_transfer_after_the_other():
    """100 bytes at 10 B/s: 10 s each; 1 s latency and 2 s hand-over run beside the next transfer."""
    link = Link(TransferCosts(bandwidth_bytes_per_s=10.0, latency_s=1.0, handover_s=2.0))
    assert link.send(0.0, 100) == 13.0
    assert link.send(4.0, 100) == 23.0
    assert link.send(50.0, 100) == 63.0


def test_two_reads_from_one_prefill_pod_queue_on_the_link():
    costs = TransferCosts(bandwidth_bytes_per_s=5 * 4 * 131072, latency_s=0.0, handover_s=0.0)
    pair = Pair(dataclasses.replace(PROFILE, transfer=costs))
    prompts = [PROMPT, [1, *PROMPT[1:]]]
    sources = [pair.source(pair.ask("p", f"a{i}", prompt=prompt, kv=LEG_ONE)) for i, prompt in enumerate(prompts)]
    start, arrived = pair.cluster.now, []
    for index, (prompt, source) in enumerate(zip(prompts, sources, strict=True)):
        request = EngineRequest(f"b{index}", prompt, 1, kv=read_from(source))
        pair.cluster.submit("d", request, lambda now, _: arrived.append(now - start))
    pair.cluster.run()
    assert arrived == [pytest.approx(1.0), pytest.approx(2.0)], "five blocks take a second"
