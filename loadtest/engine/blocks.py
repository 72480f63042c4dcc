"""The paged KV cache of one pod.

Rule of this room: a block is free (reference count 0) or held; a free block keeps its content and its name until it is
handed out again, oldest first; a free block without a name has nothing to lose and goes before all others
(vllm/v1/core/block_pool.py). Several blocks may have one name: a request's blocks are never exchanged. What a block is
*called* (the cache key) and what it *contains* are kept apart, because a hand-over can put wrong content under a right
name.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from loadtest.engine import tokens


@dataclass(slots=True)
class Block:
    """One page. `taint` is 0 when the content is what the model itself would have computed."""

    id: int
    refs: int = 0
    key: int | None = None
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
        self.blocks = [Block(index) for index in range(num_blocks)]
        self._free: OrderedDict[int, None] = OrderedDict((index, None) for index in range(num_blocks))
        self._cached: dict[int, dict[int, None]] = {}
        """Blocks by name, the first to come first."""
        self._on_stored = on_stored
        self._on_removed = on_removed
        self._on_cleared = on_cleared
        self.caching = caching

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Different names."""
        return len(self._cached)

    @property
    def usage(self) -> float:
        """Share of blocks held by requests or leases (`vllm:kv_cache_usage_perc`)."""
        return 1.0 - len(self._free) / len(self.blocks) if self.blocks else 0.0

    def longest_prefix(self, keys: Sequence[int]) -> list[Block]:
        """The cached blocks for the longest run of `keys` from the start. Does not hold them."""
        found: list[Block] = []
        for key in keys:
            same = self._cached.get(key)
            if not same:
                break
            found.append(self.blocks[next(iter(same))])
        return found

    def hold(self, blocks: Iterable[Block]) -> None:
        """Take a reference on blocks that are already there (a prefix cache hit)."""
        for block in blocks:
            if block.refs == 0:
                del self._free[block.id]
            block.refs += 1

    def allocate(self, count: int) -> list[Block] | None:
        """Take `count` empty blocks, least recently used first, or None (and nothing taken) if there are too few."""
        if count > len(self._free):
            return None
        taken: list[Block] = []
        for _ in range(count):
            index, _ = self._free.popitem(last=False)
            block = self.blocks[index]
            self._forget(block)
            block.refs, block.before, block.packed, block.taint = 1, tokens.ROOT, b"", 0
            taken.append(block)
        return taken

    def release(self, blocks: Sequence[Block]) -> None:
        """Give references back. The end of a sequence becomes free first, so it is evicted before its start."""
        nameless: list[int] = []
        for block in reversed(blocks):
            block.refs -= 1
            if block.refs == 0:
                self._free[block.id] = None
                if block.key is None:
                    nameless.append(block.id)
        for index in reversed(nameless):
            self._free.move_to_end(index, last=False)

    def write(self, block: Block, *, before: int, packed: bytes, taint: int) -> None:
        """Put content into a held block."""
        block.before, block.packed, block.taint = before, packed, taint

    def publish(self, block: Block, key: int) -> None:
        """Enter a full block into the prefix cache, beside others of that name, which are found before it."""
        if block.key is not None or not self.caching:
            return
        block.key = key
        self._cached.setdefault(key, {})[block.id] = None
        if self._on_stored:
            self._on_stored(key)

    def reset(self) -> bool:
        """Forget all names (`/reset_prefix_cache`). Refused (False) while any block is held, as in vLLM."""
        if len(self._free) != len(self.blocks):
            return False
        self._cached.clear()
        for block in self.blocks:
            block.key = None
        if self._on_cleared:
            self._on_cleared()
        return True

    def _forget(self, block: Block) -> None:
        if block.key is None:
            return
        same = self._cached[block.key]
        del same[block.id]
        if not same:
            del self._cached[block.key]
        if self._on_removed:
            self._on_removed(block.key)
        block.key = None
