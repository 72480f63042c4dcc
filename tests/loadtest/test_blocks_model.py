"""The pool against the simplest thing that does what it promises: one ordered list of free blocks."""

import random

from loadtest.engine.blocks import Block, BlockPool


class PlainPool:
    """Free blocks in one list, the next to go first; each block is its number."""

    def __init__(self, count: int) -> None:
        self.free = list(range(count))
        self.names: dict[int, int] = {}
        self.refs = dict.fromkeys(range(count), 0)
        self.born: list[int] = []
        """Named blocks in the order they got their names."""

    def find(self, keys: list[int]) -> list[int]:
        found = []
        for key in keys:
            same = [block for block in self.born if self.names[block] == key]
            if not same:
                break
            found.append(same[0])
        return found

    def hold(self, blocks: list[int]) -> None:
        for block in blocks:
            if block in self.free:
                self.free.remove(block)
            self.refs[block] += 1

    def allocate(self, count: int) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        for block in taken:
            self.refs[block] = 1
            if block in self.names:
                del self.names[block]
                self.born.remove(block)
        return taken

    def name(self, block: int, key: int) -> None:
        self.names[block] = key
        self.born.append(block)

    def release(self, blocks: list[int]) -> None:
        gone = []
        for block in reversed(blocks):
            self.refs[block] -= 1
            if not self.refs[block]:
                gone.append(block)
        nameless = [block for block in gone if block not in self.names]
        self.free = nameless + self.free + [block for block in gone if block in self.names]


def play(seed: int) -> int:
    """Random sequences that share beginnings come and go. Returns how often the queue was tidied up."""
    draw, count = random.Random(seed), 24
    pool, plain = BlockPool(count), PlainPool(count)
    held: list[tuple[list[Block], list[int]]] = []
    tidied = 0
    for _ in range(400):
        if held and (len(held) > 4 or draw.random() < 0.5):
            blocks, numbers = held.pop(draw.randrange(len(held)))
            before = pool.queue_length
            pool.release(blocks)
            tidied += pool.queue_length < before
            plain.release(numbers)
        else:
            head, length = draw.randrange(4), draw.randint(1, 8)
            keys = [100 * head + index for index in range(length)]
            hits, numbers = pool.longest_prefix(keys), plain.find(keys)
            assert len(hits) == len(numbers)
            missing = length - len(hits) + draw.randint(0, 1)
            fits = pool.fits(hits, missing)
            assert fits == (missing <= len([block for block in plain.free if block not in numbers]))
            if not fits:
                continue
            pool.hold(hits)
            plain.hold(numbers)
            blocks, more = pool.allocate(missing), plain.allocate(missing)
            assert blocks is not None
            for block, number, key in zip(blocks, more, keys[len(hits) :], strict=False):
                pool.publish(block, key)
                plain.name(number, key)
            held.append((hits + blocks, numbers + more))
        assert pool.num_free == len(plain.free)
        assert pool.num_cached == len(set(plain.names.values()))
    assert pool.free_names() == [plain.names[block] for block in plain.free if block in plain.names]
    return tidied


def test_hits_evictions_and_order_are_those_of_one_plain_list():
    assert sum(play(seed) for seed in range(60)) > 0, "the queue was tidied"


def test_the_queue_stays_in_proportion_however_often_blocks_are_used_again():
    pool = BlockPool(8)
    blocks = pool.allocate(4) or []
    for key, block in enumerate(blocks):
        pool.publish(block, key)
    pool.release(blocks)
    for _ in range(1000):
        hits = pool.longest_prefix(range(4))
        pool.hold(hits)
        pool.release(hits)
        assert pool.queue_length <= 4 * len(pool)
    assert pool.free_names() == [3, 2, 1, 0]
