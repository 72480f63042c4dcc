"""The blocks in one pod's prefix cache, and how far each conversation reaches into them.

Rule of this room: what the pod announced, no more and no less. Blocks form chains (each hash covers all before it), so
a conversation is a place in a chain and its resident tokens are the unbroken run of blocks from the chain's root to
that place: one missing block ends it, however much lies behind. A prefix shared by many is stored once and counts for
each of them.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

MAX_COPIES = 255


class Run:
    """Consecutive blocks, each the parent of the next.

    parent, parent_blocks: the run this one continues, and after how many of its blocks; None at a root.
    copies: per block, how many physical copies the pod holds (0: evicted). alive: blocks with a copy.
    owner: the session that may lengthen the run; others branch off.
    rooted: False when blocks before it were never announced.
    """

    __slots__ = ("alive", "copies", "hashes", "owner", "parent", "parent_blocks", "rooted")

    def __init__(self, owner: bytes | None, parent: Run | None, parent_blocks: int, rooted: bool) -> None:
        self.hashes = array("Q")
        self.copies = bytearray()
        self.owner = owner
        self.parent = parent
        self.parent_blocks = parent_blocks
        self.rooted = rooted
        self.alive = 0


class Place:
    """Where a session stands: after `blocks` blocks of `run`."""

    __slots__ = ("blocks", "run")

    def __init__(self, run: Run, blocks: int) -> None:
        self.run = run
        self.blocks = blocks


class BlockTree:
    """All announced blocks of one KV cache of one pod.

    max_sessions: sessions remembered, the least recently stored goes first.
    """

    def __init__(self, max_sessions: int = 200_000) -> None:
        self._run_of: dict[int, Run] = {}
        self._places: OrderedDict[bytes, Place] = OrderedDict()
        self._max_sessions = max_sessions
        self._reported: set[bytes] = set()

    def __len__(self) -> int:
        """Distinct blocks resident."""
        return len(self._run_of)

    @property
    def sessions(self) -> int:
        """Sessions whose place is known."""
        return len(self._places)

    def __contains__(self, block: int) -> bool:
        return block in self._run_of

    def clear(self) -> None:
        """Nothing is resident any more."""
        self._run_of.clear()
        self._places.clear()
        self._reported.clear()

    def expect_report(self, session: bytes) -> None:
        """The next blocks from the root that this session announces may be ones that were there before.

        vLLM then tells of prefix hits as if they were stored (`kv_cache_report_mode` "full"); no copy is added.
        """
        self._reported.add(session)

    def stored(self, session: bytes | None, parent: int | None, blocks: Sequence[int]) -> None:
        """Blocks were put into the cache, behind `parent` (None: at the root), by a request of `session`."""
        if not blocks:
            return
        run, at = self._before(session, parent)
        report = parent is None and session is not None and session in self._reported
        if report and session is not None:
            self._reported.discard(session)
        for block in blocks:
            run, at = self._put(session, run, at, block, parent, report)
            parent = block
        if session is not None and run is not None:
            self._stand(session, run, at)

    def removed(self, blocks: Sequence[int]) -> None:
        """One copy of each block was evicted. Blocks never heard of are no surprise: they were there before us."""
        for block in blocks:
            run = self._run_of.get(block)
            if run is None:
                continue
            index = _index(run, block)
            run.copies[index] -= 1
            if not run.copies[index]:
                run.alive -= 1
                del self._run_of[block]

    def join(self, session: bytes, other: bytes) -> None:
        """A session that branched off another one reaches as far as that one does, until it is heard of itself."""
        place = self._places.get(other)
        if place is not None and session not in self._places:
            self._stand(session, place.run, place.blocks)

    def known(self, session: bytes) -> bool:
        """True when the pod has announced blocks of this session."""
        return session in self._places

    def resident_blocks(self, session: bytes) -> int | None:
        """Blocks of this session that are in the cache without a gap from its first one; None: never heard of."""
        place = self._places.get(session)
        return None if place is None else self._unbroken(place.run, place.blocks)

    def chain(self, session: bytes, blocks: int) -> list[int]:
        """The hashes of the first `blocks` blocks of a session, newest first; empty when it was never heard of."""
        place = self._places.get(session)
        found: list[int] = []
        run = place.run if place is not None else None
        taken = place.blocks if place is not None else 0
        while run is not None:
            found.extend(reversed(run.hashes[:taken]))
            taken, run = run.parent_blocks, run.parent
        return found[max(0, len(found) - blocks) :]

    def forget(self, session: bytes) -> None:
        """The session will not be asked for again."""
        self._places.pop(session, None)

    def _before(self, session: bytes | None, parent: int | None) -> tuple[Run | None, int]:
        """The run and the number of its blocks after which new ones come."""
        if parent is None:
            return None, 0
        place = self._places.get(session) if session is not None else None
        if place is not None and place.blocks > 0 and place.run.hashes[place.blocks - 1] == parent:
            return place.run, place.blocks
        run = self._run_of.get(parent)
        if run is None:
            return None, 0
        return run, _index(run, parent) + 1

    def _put(
        self, session: bytes | None, run: Run | None, at: int, block: int, parent: int | None, report: bool
    ) -> tuple[Run, int]:
        holder = self._run_of.get(block)
        here = run is not None and at < len(run.hashes) and run.hashes[at] == block
        if holder is not None:
            index = at if here and holder is run else _index(holder, block)
            if not report:
                holder.copies[index] = min(MAX_COPIES, holder.copies[index] + 1)
            return holder, index + 1
        if here and run is not None:
            run.copies[at] = 1
            run.alive += 1
            self._run_of[block] = run
            return run, at + 1
        if run is None or at < len(run.hashes) or run.owner != session:
            run = Run(session, run, at, rooted=run.rooted if run is not None else parent is None)
            at = 0
        run.hashes.append(block)
        run.copies.append(1)
        run.alive += 1
        self._run_of[block] = run
        return run, at + 1

    def _unbroken(self, run: Run, blocks: int) -> int:
        """Blocks from the root to the first hole, at most to after `blocks` of `run`."""
        found = 0
        above: Run | None = run
        while above is not None:
            if not above.rooted:
                return 0
            hole = self._hole(above, blocks)
            found = found + blocks if hole < 0 else hole
            blocks, above = above.parent_blocks, above.parent
        return found

    def _hole(self, run: Run, blocks: int) -> int:
        """The first of the first `blocks` blocks of a run that is not resident, or -1.

        A block evicted from this run may have come back in another one: the hash is what counts.
        """
        if run.alive == len(run.copies):
            return -1
        hole = run.copies.find(0, 0, blocks)
        while hole >= 0 and run.hashes[hole] in self._run_of:
            hole = run.copies.find(0, hole + 1, blocks)
        return hole

    def _stand(self, session: bytes, run: Run, blocks: int) -> None:
        place = self._places.get(session)
        if place is not None:
            place.run, place.blocks = run, blocks
            self._places.move_to_end(session)
            return
        self._places[session] = Place(run, blocks)
        if len(self._places) > self._max_sessions:
            self._places.popitem(last=False)


def _index(run: Run, block: int) -> int:
    """The position of a block; the end of what is left first, because eviction and growth happen there."""
    last = len(run.copies.rstrip(b"\0")) - 1
    return last if run.hashes[last] == block else run.hashes.index(block)
