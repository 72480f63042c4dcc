"""Both ends of a KV hand-over, as one pod's engine sees them.

Rule of this room: the scheduler asks how much of a prompt will come from elsewhere and is told when a request's
blocks may go; everything else about hand-overs is here
(vllm/distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py and pull_worker.py). What arrives is compared
with what should have arrived: wrong content is not refused, it taints.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

from loadtest.engine.blocks import Block, BlockPool
from loadtest.engine.kv_events import KvEventQueue
from loadtest.engine.leases import LeaseTable
from loadtest.engine.profile import CacheSize
from loadtest.engine.request import Finish, Job, KvIntent, KvOffer, KvSource, PrefillStats, PullOrder
from loadtest.engine.text import NamedText

RECOMPUTE_THRESHOLD_TOKENS = 64
"""`kv_recompute_threshold`: a readback of fewer tokens is not worth a transfer."""


@dataclass(frozen=True, slots=True)
class KvConfig:
    """A pod's `--kv-transfer-config`."""

    engine_id: str
    host: str = "127.0.0.1"
    port: int = 0
    lease_s: float = 30.0
    """`kv_lease_duration`."""
    decoder_lease_s: float = 480.0
    """`decoder_kv_blocks_ttl`: how long D keeps blocks for a readback."""
    bidirectional: bool = False
    """`bidirectional_kv_xfer`."""
    recompute_threshold_tokens: int = RECOMPUTE_THRESHOLD_TOKENS
    recompute_on_failure: bool = False
    """`kv_load_failure_policy`: recompute (True) or fail (False, the default since 0.14)."""


UNKNOWN_BLOCKS = (-1,)
"""Where a transfer id stands for the blocks (MooncakeConnector): the lender finds out which they are."""


class _BlockIds(Sequence[int]):
    """Ids of blocks, made when somebody looks."""

    __slots__ = ("_blocks",)

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = blocks

    def __len__(self) -> int:
        return len(self._blocks)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        return _BlockIds(self._blocks[index]) if isinstance(index, slice) else self._blocks[index].id


class KvConnector:
    """The KV connector of one engine: outgoing leases, incoming reads."""

    def __init__(self, config: KvConfig, pool: BlockPool, cache: CacheSize, events: KvEventQueue) -> None:
        self.config = config
        self.leases = LeaseTable(pool)
        self._pool = pool
        self._cache = cache
        self._events = events
        self._orders: list[PullOrder] = []
        self._pulling: dict[str, tuple[Job, PullOrder]] = {}
        self._abandoned: set[str] = set()
        self.lent: dict[str, tuple[Sequence[int], float]] = {}
        """By transfer id: blocks, and when they are filled; until they were read or their lease ended."""
        self.unwanted: set[str] = set()
        """Transfer ids whose reader will not come, told before the blocks were there."""

    @property
    def num_pulling(self) -> int:
        return len(self._pulling)

    def take_orders(self) -> tuple[PullOrder, ...]:
        orders, self._orders = tuple(self._orders), []
        return orders

    def holders(self) -> list[Sequence[Block]]:
        """The blocks of each lease, and of each read whose request is gone."""
        abandoned = [self._pulling[request_id][0].blocks for request_id in self._abandoned]
        return abandoned + self.leases.holders()

    # ---- the reading end

    def tokens_to_read(self, job: Job, hit_tokens: int) -> int:
        """How far into the prompt remote KV will reach (0: nothing is read)."""
        intent = job.request.kv
        if intent is None or intent.source is None or job.kv_done or not intent.source.block_ids:
            return 0
        if intent.do_remote_prefill:
            return job.num_prompt
        if not intent.do_remote_decode:
            return 0
        end = min(intent.source.num_tokens, job.num_prompt)
        return end if end - hit_tokens >= max(1, self.config.recompute_threshold_tokens) else 0

    def begin(self, job: Job, hit_tokens: int, read_to: int) -> bool:
        """Order the read of tokens `hit_tokens .. read_to`, or only tell the source that it may free.

        True when the request has to wait for the blocks. A pod without `bidirectional_kv_xfer` that is told to read
        back waits for a read that nobody ordered, for ever (`update_state_after_alloc`).
        """
        intent = job.request.kv
        if intent is None or intent.source is None or job.kv_done:
            return False
        awaited = read_to > hit_tokens
        if not (intent.do_remote_prefill or self.config.bidirectional):
            return awaited
        if awaited:
            size = self._cache.block_size
            first = hit_tokens // size
            last = len(job.blocks) - 1
            counts = (size,) * (last - first) + (read_to - last * size,)
            # Fewer blocks wanted than offered: the last ones offered are read (_apply_prefix_caching).
            wanted = intent.source.block_ids[-len(counts) :]
            job.pulled_from = hit_tokens
            order = PullOrder(
                job.request_id,
                intent.source,
                wanted,
                counts,
                len(counts) * size * self._cache.bytes_per_token,
                awaited=True,
                named=isinstance(job.text, NamedText),
            )
            self._pulling[job.request_id] = (job, order)
        else:
            job.kv_done = True
            order = PullOrder(job.request_id, intent.source, (), (), 0, awaited=False)
        self._orders.append(order)
        return awaited

    def finish_pull(self, request_id: str, digests: tuple[int, ...] | None) -> Job | None:
        """Blocks are there, or lost (None). Returns the job; `kv_done` is False if it cannot go on."""
        job, order = self._pulling.pop(request_id, (None, None))
        if job is None or order is None:
            return None
        if request_id in self._abandoned:
            self._abandoned.discard(request_id)
            self._pool.release(job.blocks)
            return None
        if digests is None or len(digests) != len(order.counts):
            if self.config.recompute_on_failure:
                job.kv_done = True
            return job
        size = self._cache.block_size
        first = job.pulled_from // size
        job.text.receive(self._pool, job.blocks, first, order.counts, digests)
        arrived = (len(job.blocks) - 1) * size + order.counts[-1]
        job.num_written = arrived // size
        self._events.stored(job, first, job.num_written)
        # The last token is computed here even if its KV has come: something has to be sampled from.
        job.num_computed = min(arrived, job.length - 1)
        job.kv_done = True
        return job

    def refuse(self, intent: KvIntent) -> None:
        """The pod turned a request away before the engine saw it: let the source free its blocks."""
        if intent.do_remote_prefill and intent.source is not None:
            self._orders.append(PullOrder("", intent.source, (), (), 0, awaited=False))

    # ---- the lending end

    def read(self, block_ids: Sequence[int], counts: Sequence[int], *, named: bool = False) -> tuple[int, ...]:
        """Digests of what lies in those blocks now, whoever they belong to by now.

        Fewer blocks than counts give fewer digests, which the reader takes as a failed read. (A real D asserts there,
        outside any handler: `_apply_prefix_caching` in base_worker.py.) `named`: nobody compares them.
        """
        if named:
            return (0,) * min(len(block_ids), len(counts))
        return tuple(
            self._pool.block(index % len(self._pool)).digest(count)
            for index, count in zip(block_ids, counts, strict=False)
        )

    def let_go(self, job: Job, finish: Finish, now: float, prefill: PrefillStats | None) -> KvOffer | None:
        """A request is over: pin its blocks for the other pod and say where they are, or free them."""
        intent = job.request.kv
        if job.request_id in self._pulling:
            self._abandoned.add(job.request_id)
            return None
        if intent is not None and intent.do_remote_prefill and not job.kv_done and finish is Finish.ABORT:
            self.refuse(intent)
        if intent is None or finish not in (Finish.STOP, Finish.LENGTH) or not job.blocks:
            self._pool.release(job.blocks)
            return None
        from_prefill = intent.do_remote_decode
        if not from_prefill and not self.config.bidirectional:
            self._pool.release(job.blocks)
            return None
        self._write_open_block(job)
        if from_prefill and intent.source is not None and intent.source.block_ids is UNKNOWN_BLOCKS:
            self._lend(job, intent.source.request_id, finish, now)
            return None
        duration_s = self.config.lease_s if from_prefill else self.config.decoder_lease_s
        expires_s = self.leases.grant(job.request_id, job.blocks, now, duration_s)
        ids = _BlockIds(job.blocks)
        source = KvSource(
            engine_id=self.config.engine_id,
            request_id=job.request_id,
            host=self.config.host,
            port=self.config.port,
            block_ids=ids if isinstance(job.text, NamedText) else tuple(ids),
            num_tokens=job.num_computed,
        )
        if not from_prefill:
            source = replace(source, expires_s=expires_s)
        elif prefill is not None:
            source = replace(source, cached_tokens=prefill.cached_tokens)
        return KvOffer(source, from_prefill)

    def _lend(self, job: Job, transfer_id: str, finish: Finish, now: float) -> None:
        """Keep blocks under a transfer id (mooncake/mooncake_connector.py, `request_finished`)."""
        if finish is not Finish.LENGTH or transfer_id in self.unwanted:
            self.unwanted.discard(transfer_id)
            self._pool.release(job.blocks)
            return
        self._write_open_block(job)
        self.lent = {known: lent for known, lent in self.lent.items() if known in self.leases}
        self.leases.grant(transfer_id, job.blocks, now, self.config.lease_s)
        self.lent[transfer_id] = (tuple(_BlockIds(job.blocks)), now)

    def _write_open_block(self, job: Job) -> None:
        count = job.num_computed - job.num_written * self._cache.block_size
        if count:
            job.text.fill_open(self._pool, job.blocks[job.num_written], job.num_written, count)
