"""The paged KV cache of one pod.

Rule of this room: a block is free (reference count 0) or held; a free block keeps its content and its name until it is
handed out again, oldest first; a free block without a name has nothing to lose and goes before all others
(vllm/v1/core/block_pool.py). Several blocks may have one name: a request's blocks are never exchanged. What a block is
*called* (the cache key) and what it *contains* are kept apart, because a hand-over can put wrong content under a right
name.

A block that is used again is not taken out of the queue of free blocks: what it says of the block (`stamp`) is then out
of date, and whoever comes to it passes over it. So using and giving back long prefixes costs no queue work per block.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from loadtest.engine import tokens


@dataclass(slots=True, eq=False)
class Block:
    """One page. `taint` is 0 when the content is what the model itself would have computed."""

    id: int
    refs: int = 0
    key: int | None = None
    stamp: int = 0
    """When it last became free, in releases."""
    before: int = tokens.ROOT
    """Digest of the history this block's content continues."""
    packed: bytes = b""
    taint: int = 0

    def digest(self, count: int) -> int:
        """Digest of the first `count` tokens as they lie in memory now: wrong content gives another digest."""
        digest = tokens.extend(self.before, self.packed[: 4 * count])
        return tokens.mix(digest, self.taint) if self.taint else digest


class BlockPool:
    """All blocks of one pod, with the prefix cache over them.

    `on_stored` and `on_removed` are called with a block's cache key when that block enters and leaves the prefix cache,
    `on_cleared` when all leave at once. `caching` False: no block ever gets a name.
    """

    def __init__(
        self,
        num_blocks: int,
        *,
        on_stored: Callable[[int], None] | None = None,
        on_removed: Callable[[int], None] | None = None,
        on_cleared: Callable[[], None] | None = None,
        caching: bool = True,
    ) -> None:
        self.blocks: list[Block] = []
        """Those that were ever used; a pool is large, and most runs are short."""
        self._size = num_blocks
        self.num_free = num_blocks
        self._nameless: list[Block] = []
        """Free blocks without a name, the next to go last."""
        self._queue: deque[tuple[int, list[Block]]] = deque()
        """Free blocks with a name, by release (its stamp), the next to go last in the first release."""
        self._queued = 0
        self._releases = 0
        self._cached: dict[int, Block] = {}
        """The block that is found by a name: of several the first to come."""
        self._later: dict[int, list[Block]] = {}
        """The others of that name."""
        self._on_stored = on_stored
        self._on_removed = on_removed
        self._on_cleared = on_cleared
        self.caching = caching

    def __len__(self) -> int:
        return self._size

    def block(self, index: int) -> Block:
        """The block of that number, be it one that was never used."""
        return self.blocks[index] if index < len(self.blocks) else Block(index)

    @property
    def num_cached(self) -> int:
        """Different names."""
        return len(self._cached)

    @property
    def usage(self) -> float:
        """Share of blocks held by requests or leases (`vllm:kv_cache_usage_perc`)."""
        return 1.0 - self.num_free / self._size if self._size else 0.0

    def longest_prefix(self, keys: Iterable[int]) -> list[Block]:
        """The cached blocks for the longest run of `keys` from the start. Does not hold them."""
        found = list(map(self._cached.get, keys))
        if None in found:
            del found[found.index(None) :]
        return cast("list[Block]", found)

    def hold(self, blocks: Iterable[Block]) -> None:
        """Take a reference on blocks that are already there (a prefix cache hit)."""
        woken = 0
        for block in blocks:
            if block.refs:
                block.refs += 1
            else:
                block.refs = 1
                woken += 1
        self.num_free -= woken

    def fits(self, blocks: Sequence[Block], more: int) -> bool:
        """Whether these cached blocks could be held and `more` new ones be taken beside them."""
        spare = self.num_free - more
        return spare >= len(blocks) or spare >= sum(not block.refs for block in blocks)

    def allocate(self, count: int) -> list[Block] | None:
        """Take `count` empty blocks, least recently used first, or None (and nothing taken) if there are too few."""
        if count > self.num_free:
            return None
        self.num_free -= count
        taken = self._nameless[: -count - 1 : -1]
        del self._nameless[len(self._nameless) - len(taken) :]
        if len(taken) < count:
            fresh = range(len(self.blocks), min(self._size, len(self.blocks) + count - len(taken)))
            made = [Block(index) for index in fresh]
            self.blocks += made
            taken += made
        if len(taken) < count:
            self._evict(count - len(taken), taken)
        for block in taken:
            block.refs = 1
            if block.packed:
                block.before, block.packed, block.taint = tokens.ROOT, b"", 0
        return taken

    def _evict(self, count: int, taken: list[Block]) -> None:
        """Add the next `count` named blocks of the queue to `taken`, without their names."""
        queue, queued, cached = self._queue, self._queued, self._cached
        simple = not self._later and self._on_removed is None
        while True:
            stamp, run = queue[0]
            while run:
                block = run.pop()
                queued -= 1
                if block.stamp == stamp and not block.refs:
                    if simple and block.key is not None:
                        del cached[block.key]
                        block.key = None
                    else:
                        self._forget(block)
                    taken.append(block)
                    count -= 1
                    if not count:
                        self._queued = queued
                        return
            queue.popleft()

    def release(self, blocks: Sequence[Block]) -> None:
        """Give references back. The end of a sequence becomes free first, so it is evicted before its start."""
        self._releases = stamp = self._releases + 1
        named: list[Block] = []
        nameless = self._nameless
        before = len(nameless)
        for block in blocks:
            if block.refs > 1:
                block.refs -= 1
                continue
            block.refs = 0
            if block.key is None:
                nameless.append(block)
            else:
                block.stamp = stamp
                named.append(block)
        self.num_free += len(named) + len(nameless) - before
        if named:
            self._queue.append((stamp, named))
            self._queued += len(named)
            if self._queued > 4 * self._size:
                self._tidy()

    def _tidy(self) -> None:
        """Drop what is out of date from the queue."""
        runs = [(stamp, [b for b in run if not b.refs and b.stamp == stamp]) for stamp, run in self._queue]
        self._queue = deque((stamp, run) for stamp, run in runs if run)
        self._queued = sum(len(run) for _, run in self._queue)

    def write(self, block: Block, *, before: int, packed: bytes, taint: int) -> None:
        """Put content into a held block."""
        block.before, block.packed, block.taint = before, packed, taint

    def publish(self, block: Block, key: int) -> None:
        """Enter a full block into the prefix cache, beside others of that name, which are found before it."""
        self.publish_all((block,), (key,))

    def publish_all(self, blocks: Iterable[Block], keys: Iterable[int]) -> None:
        """`publish` one after the other."""
        if not self.caching:
            return
        cached, on_stored = self._cached, self._on_stored
        for block, key in zip(blocks, keys, strict=True):
            if block.key is None:
                block.key = key
                if cached.setdefault(key, block) is not block:
                    self._later.setdefault(key, []).append(block)
                if on_stored:
                    on_stored(key)

    @property
    def queue_length(self) -> int:
        """Entries of the queue of free blocks, with those out of date."""
        return self._queued

    def names(self) -> set[int]:
        """Names that would be found."""
        return set(self._cached)

    def free_names(self) -> list[int]:
        """Names of the free cached blocks, the next to be evicted first."""
        self._tidy()
        return [block.key for _, run in self._queue for block in reversed(run) if block.key is not None]

    def reset(self) -> bool:
        """Forget all names (`/reset_prefix_cache`). Refused (False) while any block is held, as in vLLM."""
        if self.num_free != self._size:
            return False
        self._tidy()
        self._nameless = [block for _, run in reversed(self._queue) for block in run] + self._nameless
        self._queue.clear()
        self._queued = 0
        self._cached.clear()
        self._later.clear()
        for block in self.blocks:
            block.key = None
        if self._on_cleared:
            self._on_cleared()
        return True

    def _forget(self, block: Block) -> None:
        key = block.key
        if key is None:
            return
        if not self._later or (later := self._later.get(key)) is None:
            del self._cached[key]
        else:
            if self._cached[key] is block:
                self._cached[key] = later.pop(0)
            else:
                later.remove(block)
            if not later:
                del self._later[key]
        if self._on_removed:
            self._on_removed(key)
        block.key = None
