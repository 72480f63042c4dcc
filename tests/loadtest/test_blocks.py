"""The paged KV cache: who holds a block, what it is called, who is evicted."""

from loadtest.engine.blocks import BlockPool
from loadtest.engine.tokens import ROOT, TokenChain, extend, pack


def filled(pool: BlockPool, keys: list[int]) -> list:
    blocks = pool.allocate(len(keys))
    assert blocks is not None
    for block, key in zip(blocks, keys, strict=True):
        pool.publish(block, key)
    return blocks


def test_a_released_block_is_still_found_by_its_name():
    pool = BlockPool(4)
    pool.release(filled(pool, [11, 12]))
    assert [block.key for block in pool.longest_prefix([11, 12, 13])] == [11, 12]
    assert pool.num_free == 4


def test_a_hit_stops_at_the_first_missing_block():
    pool = BlockPool(4)
    filled(pool, [11, 13])
    assert [block.key for block in pool.longest_prefix([11, 12, 13])] == [11]


def test_the_end_of_the_oldest_sequence_is_evicted_first():
    pool = BlockPool(4)
    pool.release(filled(pool, [11, 12]))
    pool.release(filled(pool, [21, 22]))
    pool.allocate(1)
    assert [block.key for block in pool.longest_prefix([11, 12])] == [11]
    pool.allocate(1)
    assert pool.longest_prefix([11, 12]) == []
    assert [block.key for block in pool.longest_prefix([21, 22])] == [21, 22]


def test_using_a_block_again_makes_it_the_youngest():
    pool = BlockPool(3)
    for key in (1, 2, 3):
        pool.release(filled(pool, [key]))
    again = pool.longest_prefix([1])
    pool.hold(again)
    pool.release(again)
    pool.allocate(2)
    assert [bool(pool.longest_prefix([key])) for key in (1, 2, 3)] == [True, False, False]


def test_a_held_block_is_never_handed_out():
    pool = BlockPool(2)
    held = filled(pool, [1])
    assert pool.allocate(2) is None
    assert pool.num_free == 1
    pool.hold(held)
    pool.release(held)
    assert pool.num_free == 1, "two references, one given back"
    pool.release(held)
    assert pool.num_free == 2


def test_two_blocks_may_have_one_name_and_the_first_is_found_until_it_goes():
    told: list[tuple[str, int]] = []
    pool = BlockPool(2, on_stored=lambda key: told.append(("+", key)), on_removed=lambda key: told.append(("-", key)))
    first, second = filled(pool, [7])[0], filled(pool, [7])[0]
    assert pool.longest_prefix([7]) == [first]
    assert pool.num_cached == 1
    pool.release([first])
    pool.allocate(1)
    assert pool.longest_prefix([7]) == [second]
    assert told == [("+", 7), ("+", 7), ("-", 7)]


def test_a_block_without_a_name_is_handed_out_before_any_other():
    pool = BlockPool(4)
    pool.release(filled(pool, [1, 2]))
    named, nameless = filled(pool, [3]), pool.allocate(1) or []
    pool.release(named + nameless)
    assert pool.allocate(1) == nameless


def test_a_pool_without_caching_names_nothing():
    pool = BlockPool(2, caching=False)
    filled(pool, [1])
    assert pool.longest_prefix([1]) == []
    assert pool.num_cached == 0


def test_names_are_reported_when_they_come_and_go():
    told: list[tuple[str, int]] = []
    pool = BlockPool(1, on_stored=lambda key: told.append(("+", key)), on_removed=lambda key: told.append(("-", key)))
    pool.release(filled(pool, [5]))
    filled(pool, [6])
    assert told == [("+", 5), ("-", 5), ("+", 6)]


def test_reset_is_refused_while_a_block_is_held():
    pool = BlockPool(2)
    held = filled(pool, [1])
    assert pool.reset() is False
    pool.release(held)
    assert pool.reset() is True
    assert pool.longest_prefix([1]) == []


def test_a_reset_is_told_as_one_thing():
    told: list[str] = []
    pool = BlockPool(2, on_removed=lambda key: told.append(f"-{key}"), on_cleared=lambda: told.append("cleared"))
    pool.release(filled(pool, [1, 2]))
    pool.reset()
    assert told == ["cleared"]
    pool.allocate(2)
    assert told == ["cleared"], "what was forgotten is not removed again"


def test_a_chain_names_each_whole_block_by_all_tokens_before_it():
    chain = TokenChain(range(10), block_size=4)
    first = extend(ROOT, pack([0, 1, 2, 3]))
    assert chain.digests == [first, extend(first, pack([4, 5, 6, 7]))]
    chain.append(10)
    assert len(chain.digests) == 2
    chain.append(11)
    assert chain.digests[2] == extend(chain.digests[1], pack([8, 9, 10, 11]))


def test_the_name_of_a_history_depends_on_its_first_token():
    assert TokenChain([0, *range(1, 8)], 4).digests[1] != TokenChain([9, *range(1, 8)], 4).digests[1]


def test_a_block_with_wrong_content_has_another_digest():
    pool, chain = BlockPool(1), TokenChain(range(4), 4)
    (block,) = pool.allocate(1) or []
    pool.write(block, before=ROOT, packed=chain.block(0), taint=0)
    assert block.digest(4) == chain.digests[0]
    pool.write(block, before=ROOT, packed=chain.block(0), taint=1)
    assert block.digest(4) != chain.digests[0]
