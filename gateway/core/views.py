"""What one DP rank of a pod has announced about its KV, and how far that can be trusted.

Rule of this room: knowledge is complete from sequence number 0 on without a gap, or it says so. A gap that cannot be
replayed wipes the view (an eviction may be among what was missed); sessions come back into it one by one.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.core.blocks import BlockTree

_DEVICE_MEDIA = (None, "GPU")
"""Media whose blocks a prefix hit can use at once; vLLM says GPU on every device, offloading tiers have others."""

_WHOLE_PREFIX_KINDS = (None, "full_attention", "mla_attention", "sink_full_attention", "unknown")


class Arrival(enum.Enum):
    """What a sequence number means. NEXT: apply it. OLD: seen already. GAP: some before it are missing.
    RESTART: the publisher began anew."""

    NEXT = "next"
    OLD = "old"
    GAP = "gap"
    RESTART = "restart"


@dataclass
class Windowed:
    """A KV cache group that needs only the last tokens of a prefix (sliding window, Mamba state).

    window_tokens: how many. copies: physical copies by block hash.
    """

    window_tokens: int
    copies: dict[int, int] = field(default_factory=dict)

    def stored(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.copies[block] = self.copies.get(block, 0) + 1

    def removed(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            left = self.copies.get(block, 0) - 1
            if left > 0:
                self.copies[block] = left
            else:
                self.copies.pop(block, None)


class RankView:
    """The announced KV of one DP rank.

    complete: everything since the pod's start was heard. gaps, lost: gaps seen, and those that stayed.
    last_event_s: pod's wall clock of the last batch. lag_s: how long the last one that was not replayed took to come
    here and be applied, by both clocks.
    """

    def __init__(self, max_sessions: int = 200_000) -> None:
        self._max_sessions = max_sessions
        self._groups: dict[int, BlockTree] = {}
        self._windowed: dict[int, Windowed] = {}
        self._next = 0
        self._last_live = -1
        self.block_size = 0
        self.complete = False
        self.heard = False
        self.batches = 0
        self.blocks = 0
        self.gaps = 0
        self.lost = 0
        self.last_event_s = 0.0
        self.lag_s = 0.0

    @property
    def next_sequence(self) -> int:
        """The sequence number that would leave no gap."""
        return self._next

    @property
    def resident_blocks(self) -> int:
        """Distinct blocks announced and not removed, over all groups."""
        return sum(map(len, self._groups.values())) + sum(len(group.copies) for group in self._windowed.values())

    def arrival(self, sequence: int) -> Arrival:
        """Judge a live message (not one of a replay)."""
        restarted = sequence <= self._last_live
        self._last_live = sequence
        if restarted:
            return Arrival.RESTART
        if sequence < self._next:
            return Arrival.OLD
        if sequence == self._next:
            self.complete = self.complete or sequence == 0
            return Arrival.NEXT
        self.gaps += 1
        return Arrival.GAP

    def postpone(self, sequence: int) -> None:
        """A live message waits for a replay and will be judged again."""
        self._last_live = sequence - 1

    def heard_batch(self, sequence: int, at_s: float) -> None:
        """A batch is about to be applied."""
        self._next = sequence + 1
        self.heard = True
        self.batches += 1
        self.last_event_s = at_s

    def replayed_from(self, sequence: int) -> bool:
        """A replay begins with this sequence number; False when what lies before it is lost."""
        if sequence == 0 and self._next == 0:
            self.complete = True
        return sequence == self._next

    def lose(self, next_sequence: int) -> None:
        """What lies before `next_sequence` will not be known any more."""
        self.lost += 1
        self._wipe()
        self._next = next_sequence

    def restart(self) -> None:
        """The pod's process is a new one: nothing is resident, sequence numbers begin at 0."""
        self._wipe()
        self._next = 0
        self._last_live = -1

    def distrust(self) -> None:
        """The pod behaves otherwise than it announces: forget what it said."""
        self.lost += 1
        self._wipe()

    def stored(
        self,
        session: bytes | None,
        parent: int | None,
        blocks: Sequence[int],
        block_size: int,
        medium: str | None = None,
        group: int | None = None,
        kind: str | None = None,
        window: int | None = None,
    ) -> None:
        """Blocks entered a group's cache (BlockStored)."""
        if medium not in _DEVICE_MEDIA:
            return
        self.blocks += len(blocks)
        if kind in _WHOLE_PREFIX_KINDS and not window:
            if not self.block_size:
                self.block_size = block_size
            if block_size == self.block_size:
                self._tree(group).stored(session, parent, blocks)
            return
        windowed = self._windowed.get(group or 0)
        if windowed is None:
            windowed = self._windowed[group or 0] = Windowed(window or block_size)
        windowed.stored(blocks)

    def removed(self, blocks: Sequence[int], medium: str | None = None, group: int | None = None) -> None:
        """Blocks left a group's cache (BlockRemoved)."""
        if medium not in _DEVICE_MEDIA:
            return
        self.blocks += len(blocks)
        windowed = self._windowed.get(group or 0)
        if windowed is not None:
            windowed.removed(blocks)
        elif (group or 0) in self._groups:
            self._groups[group or 0].removed(blocks)

    def cleared(self) -> None:
        """The prefix cache was reset (AllBlocksCleared): from here on everything is known again."""
        self._wipe()
        self.complete = True

    def resident_tokens(self, session: bytes) -> int | None:
        """Tokens of this session resident without a gap from its first; None when that is not known."""
        if not self._groups:
            return 0 if self.complete and self.heard else None
        found = [tree.resident_blocks(session) for tree in self._groups.values()]
        counts = [blocks for blocks in found if blocks is not None]
        if len(counts) < len(found):
            return 0 if self.complete else None
        fewest = min(counts)
        if self._windowed and fewest:
            fewest = self._within_windows(session, fewest)
        return fewest * self.block_size

    def knows(self, session: bytes) -> bool:
        """True when blocks of this session were announced."""
        return any(tree.known(session) for tree in self._groups.values())

    def expect_report(self, session: bytes) -> None:
        """A request of this session was told to report its prefix hits (see BlockTree.expect_report)."""
        for tree in self._groups.values():
            tree.expect_report(session)

    def join(self, session: bytes, other: bytes) -> None:
        """A session branched off another."""
        for tree in self._groups.values():
            tree.join(session, other)

    def forget(self, session: bytes) -> None:
        """The session will not be asked for again."""
        for tree in self._groups.values():
            tree.forget(session)

    def _within_windows(self, session: bytes, blocks: int) -> int:
        """The longest prefix of at most `blocks` blocks at whose end every windowed group has its window."""
        newest_first = next(iter(self._groups.values())).chain(session, blocks)
        length = len(newest_first)
        for start in range(length):
            if all(
                all(h in group.copies for h in newest_first[start : start + -(-group.window_tokens // self.block_size)])
                for group in self._windowed.values()
            ):
                return length - start
        return 0

    def _tree(self, group: int | None) -> BlockTree:
        tree = self._groups.get(group or 0)
        if tree is None:
            tree = self._groups[group or 0] = BlockTree(self._max_sessions)
        return tree

    def _wipe(self) -> None:
        self.complete = False
        for tree in self._groups.values():
            tree.clear()
        for group in self._windowed.values():
            group.copies.clear()
