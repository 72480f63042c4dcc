"""The virtual cluster: timers, loads, pods that slow down, die and come back, and network cards."""

import dataclasses

import pytest

from loadtest.engine import profile
from loadtest.engine.core import Engine
from loadtest.engine.kv_connector import KvConfig
from loadtest.engine.profile import StepCosts, TransferCosts
from loadtest.engine.request import EngineOutput, EngineRequest, Finish, KvIntent, KvSource
from loadtest.engine.segments import Segments
from loadtest.engine.virtual import VirtualCluster

SECOND_A_STEP = dataclasses.replace(
    profile.load("instant").with_cache(block_size=4, num_blocks=64), step=StepCosts(1.0, 0.0, 0.0, 0.0, 0.0)
)
"""A step takes a second, whatever it does."""
Got = list[tuple[float, EngineOutput]]


class World:
    def __init__(self, *names: str, used=SECOND_A_STEP, nic: float | None = None, **config) -> None:
        self.cluster = VirtualCluster()
        for name in names:
            self.cluster.add(name, Engine(used, kv=KvConfig(name, **config)), nic_bytes_per_s=nic)

    def ask(
        self, pod: str, name: str, tokens: int = 8, answer: int = 1, kv: KvIntent | None = None, salt: int = 1
    ) -> Got:
        got: Got = []
        request = EngineRequest(name, Segments([(salt, tokens)]), answer, answer=99, kv=kv)
        self.cluster.submit(pod, request, lambda now, output: got.append((now, output)))
        return got

    def offered(self, pod: str, name: str, salt: int = 1, tokens: int = 8) -> KvSource:
        got = self.ask(pod, name, kv=KvIntent(do_remote_decode=True), salt=salt, tokens=tokens)
        self.cluster.run(self.cluster.now + 1.5)
        offer = got[-1][1].offer
        assert offer is not None
        return offer.source


def ends(got: Got) -> list[tuple[float, Finish | None, int]]:
    return [(now, output.finish, output.num_tokens) for now, output in got]


def test_only_the_first_token_and_the_end_are_told():
    world = World("d")
    got = world.ask("d", "a", answer=20)
    world.cluster.run()
    assert ends(got) == [(1.0, None, 1), (20.0, Finish.LENGTH, 20)]
    assert got[0][1].prefill is not None
    assert got[1][1].prefill is None


def test_the_next_turn_finds_what_the_segments_share():
    """6 of the 8 tokens' first segment and the answer's 9 that were computed: 15, in whole blocks 12."""
    world = World("d")
    world.ask("d", "a", tokens=6, answer=10)
    world.cluster.run()
    prompt = Segments([(1, 6), (99, 10), (2, 5)])
    got: Got = []
    world.cluster.submit("d", EngineRequest("b", prompt, 1, answer=98), lambda *told: got.append(told))
    world.cluster.run()
    prefill = got[0][1].prefill
    assert prefill is not None
    assert (prefill.prompt_tokens, prefill.cached_tokens) == (21, 12)


def test_an_abort_says_how_much_there_was_and_nothing_comes_after_it():
    world = World("d")
    got = world.ask("d", "a", answer=100)
    made: list[int] = []
    world.cluster.call_at(7.5, lambda: made.append(world.cluster.abort("d", "a")))
    assert world.cluster.run() == 8.0, "the step under way is carried to its end"
    assert made == [8]
    assert ends(got) == [(1.0, None, 1)]
    assert world.cluster.abort("d", "a") == 0
    assert world.cluster.load("d").kv_usage == 0.0


def test_a_cancelled_timer_does_nothing():
    cluster, rang = VirtualCluster(), []
    timer = cluster.call_at(1.0, lambda: rang.append(1))
    cluster.call_at(2.0, lambda: rang.append(2))
    timer.cancel()
    assert cluster.run() == 2.0
    assert rang == [2]


def test_looking_at_a_pod_changes_nothing():
    world = World("d")
    got, loads = world.ask("d", "a", answer=20), []
    for when in (0.5, 5.5, 5.6, 19.5):
        world.cluster.call_at(when, lambda: loads.append(world.cluster.load("d")))
    world.cluster.run()
    assert [(load.running, load.prefill_tokens, load.decode_tokens) for load in loads] == [
        (1, 8, 0),
        (1, 8, 5),
        (1, 8, 5),
        (0, 8, 19),
    ]
    assert ends(got)[-1] == (20.0, Finish.LENGTH, 20)


def test_a_pod_made_twice_as_slow_takes_twice_as_long_from_the_next_step_on():
    """Steps end at 1, 2, 3 s; the fourth is under way at 3.5 and ends at 4; the other six take 2 s each."""
    world = World("d")
    got = world.ask("d", "a", answer=10)
    world.cluster.call_at(3.5, lambda: world.cluster.set_slowdown("d", 2.0))
    world.cluster.run()
    assert ends(got)[-1] == (16.0, Finish.LENGTH, 10)


def test_a_pod_that_dies_ends_its_requests_and_forgets_its_cache():
    world = World("d")
    first = world.ask("d", "a", answer=10)
    world.cluster.call_at(3.2, lambda: world.cluster.kill("d"))
    world.cluster.run()
    assert ends(first) == [(1.0, None, 1), (3.2, Finish.ERROR, 0)]
    refused = world.ask("d", "b")
    world.cluster.run()
    assert ends(refused) == [(3.2, Finish.ERROR, 0)]
    assert not world.cluster.load("d").up
    world.cluster.call_at(5.0, lambda: world.cluster.restart("d"))
    world.cluster.run()
    again = world.ask("d", "c")
    world.cluster.run()
    assert ends(again) == [(6.0, Finish.LENGTH, 1)]
    assert again[0][1].prefill is not None
    assert again[0][1].prefill.cached_tokens == 0


def test_reading_from_a_pod_that_died_fails_even_if_it_is_back():
    world = World("p", "d")
    source = world.offered("p", "a")
    world.cluster.kill("p")
    got = world.ask("d", "b", kv=KvIntent(do_remote_prefill=True, source=source))
    world.cluster.run(5.0)
    assert [output.finish for _, output in got] == [Finish.ERROR]
    assert world.cluster.load("d").kv_usage == 0.0


def test_a_reader_that_dies_leaves_the_lease_to_run_out():
    slow = dataclasses.replace(SECOND_A_STEP, transfer=TransferCosts(1e12, 0.0, 3.0))
    world = World("p", "d", used=slow, lease_s=20.0)
    source = world.offered("p", "a")
    got = world.ask("d", "b", kv=KvIntent(do_remote_prefill=True, source=source))
    world.cluster.call_at(2.0, lambda: world.cluster.kill("d"))
    world.cluster.run(19.0)
    assert [output.finish for _, output in got] == [Finish.ERROR]
    assert world.cluster.load("p").leased_blocks == 2
    world.cluster.run()
    assert world.cluster.load("p").leased_blocks == 0


def test_a_reader_that_waits_keeps_the_lease_alive():
    """D runs one request at a time and is busy for 60 s; P's lease of 10 s is renewed as long as D has the request."""
    world = World("p", "d", used=SECOND_A_STEP.with_limits(max_num_seqs=1), lease_s=10.0)
    source = world.offered("p", "a")
    world.ask("d", "busy", answer=60, salt=2)
    got = world.ask("d", "b", kv=KvIntent(do_remote_prefill=True, source=source))
    world.cluster.run()
    assert got[-1][1].finish is Finish.LENGTH
    assert world.cluster.engine("p").connector.leases.num_expired == 0


def test_a_prompt_longer_than_the_context_is_refused():
    world = World("d")
    got = world.ask("d", "a", tokens=257)
    world.cluster.run()
    assert ends(got) == [(0.0, Finish.ERROR, 0)]
    with pytest.raises(ValueError, match="257 tokens, context 256"):
        world.cluster.engine("d").submit(EngineRequest("a", Segments([(1, 257)]), 1), 0.0)


def test_links_that_share_a_network_card_take_turns():
    """P lends 10 s worth of bytes to two readers: each link is free, P's card is not."""
    costs = TransferCosts(8 * 131072 / 10.0, 0.0, 0.0)
    for nic, expected in ((None, [10.0, 10.0]), (costs.bandwidth_bytes_per_s, [10.0, 20.0])):
        world = World("p", "d0", "d1", used=dataclasses.replace(SECOND_A_STEP, transfer=costs), nic=nic)
        sources = [world.offered("p", f"a{salt}", salt=salt) for salt in (1, 2)]
        start, got = world.cluster.now, []
        for salt, source in enumerate(sources, 1):
            kv = KvIntent(do_remote_prefill=True, source=source)
            got.append(world.ask(f"d{salt - 1}", f"b{salt}", kv=kv, salt=salt))
        world.cluster.run()
        assert [told[0][0] - start - 1.0 for told in got] == pytest.approx(expected), "and a second for the token"
        assert sum(link.num_bytes for link in world.cluster.links.values()) == 2 * 8 * 131072
