"""What holds of the engine whatever is asked of it, on random traffic."""

import functools
import math

import pytest

from loadtest.engine.core import Engine
from loadtest.engine.request import Finish
from tests.loadtest.engine_traffic import BYTES_PER_TOKEN, PODS, Traffic

ROUGH = range(60)
"""Seeds of traffic with aborts, pods that die and pods that are slow."""
GENTLE = range(1000, 1060)


@functools.cache
def played(seed: int, *, gentle: bool = False) -> Traffic:
    return Traffic(seed, gentle=gentle).play()


def engines(traffic: Traffic) -> list[Engine]:
    return [traffic.cluster.engine(name) for name in PODS]


def check_blocks(engine: Engine) -> None:
    """No block leaks, none is in two places, none without a name has two owners."""
    pool, held = engine.pool, {}
    for blocks in engine.holders():
        assert len({block.id for block in blocks}) == len(blocks), "one request has a block once"
        for block in blocks:
            held[block.id] = held.get(block.id, 0) + 1
    for block in pool.blocks:
        assert block.refs == held.get(block.id, 0)
        assert block.refs < 2 or block.key is not None, "only a named block can be shared"
    assert pool.num_free == len(pool) - len(held)


def test_at_every_moment_each_block_is_free_or_held_by_those_that_count_on_it():
    for seed in ROUGH[:25]:
        Traffic(seed, watch=lambda traffic: [check_blocks(engine) for engine in engines(traffic)]).play()


def test_in_the_end_every_lease_is_gone_and_every_block_free():
    for seed in ROUGH:
        for engine in engines(played(seed)):
            assert engine.connector is not None
            assert (len(engine.connector.leases), engine.connector.num_pulling, engine.num_requests) == (0, 0, 0)
            assert engine.pool.num_free == len(engine.pool)
            assert set(engine.pool.free_names()) == engine.pool.names()


def test_every_request_ends_once_and_is_silent_afterwards():
    seen = set()
    for seed in ROUGH:
        for asked in played(seed).asked:
            finishes = [output.finish for _, output in asked.outputs]
            assert sum(finish is not None for finish in finishes) == (asked.aborted_after is None)
            assert asked.aborted_after is not None or finishes[-1] is not None
            firsts = [output.prefill for _, output in asked.outputs if output.prefill]
            assert len(firsts) == 1 or (len(firsts) == 0 and finishes[-1:] != [Finish.LENGTH])
            seen |= {asked.aborted_after is not None, *finishes}
    assert {True, Finish.LENGTH, Finish.ERROR} <= seen, "the traffic has seen all ends"


def test_time_goes_forward_for_every_request():
    for seed in ROUGH:
        for asked in played(seed).asked:
            times = [when for when, _ in asked.outputs]
            assert times == sorted(times)


def test_every_token_is_computed_once_but_what_was_preempted():
    """A prompt but for what was cached or read, and of the answer all but the last token, which is only sampled. Of a
    prompt that was read whole, the last token is computed again: something must be sampled from."""
    preempted = 0
    for seed in GENTLE:
        traffic = played(seed, gentle=True)
        for name, engine in zip(PODS, engines(traffic), strict=True):
            due = 0
            for asked in traffic.asked:
                if asked.pod == name and asked.outputs[-1][1].finish is Finish.LENGTH:
                    prefill, tokens = asked.outputs[0][1].prefill, asked.outputs[-1][1].num_tokens
                    assert prefill is not None
                    due += max(1, prefill.prompt_tokens - prefill.cached_tokens) + tokens - 1
            computed = engine.stats.prefill_tokens + engine.stats.decode_tokens
            assert computed == due + engine.stats.recomputed_tokens
            preempted += engine.stats.preemptions
    assert preempted > 20


def test_links_carry_the_blocks_that_were_read_and_nothing_else():
    carried = 0
    for seed in GENTLE:
        traffic = played(seed, gentle=True)
        size, due = traffic.profile.cache.block_size, dict.fromkeys(PODS, 0)
        for asked in traffic.asked:
            for _, output in asked.outputs:
                if output.prefill is not None:
                    due[asked.pod] += math.ceil(output.prefill.cached_remote / size) * size * BYTES_PER_TOKEN
        sent = dict.fromkeys(PODS, 0)
        for (reader, _), link in traffic.cluster.links.items():
            sent[reader] += link.num_bytes
            assert link.busy_s == pytest.approx(link.num_bytes / traffic.profile.transfer.bandwidth_bytes_per_s)
        assert sent == due
        carried += sum(sent.values())
    assert carried > 0


def test_what_a_pod_counts_is_what_its_requests_were_told():
    for seed in GENTLE:
        traffic = played(seed, gentle=True)
        for name, engine in zip(PODS, engines(traffic), strict=True):
            told = [output for asked in traffic.asked if asked.pod == name for _, output in asked.outputs]
            prefills = [output.prefill for output in told if output.prefill]
            assert engine.stats.prompt_tokens == sum(prefill.prompt_tokens for prefill in prefills)
            assert engine.stats.prefix_hits == sum(prefill.cached_local for prefill in prefills)
            assert engine.stats.generation_tokens == sum(output.num_tokens for output in told if output.finish)
