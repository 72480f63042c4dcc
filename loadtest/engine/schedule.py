"""Who computes what in a step.

Rule of this room: queues and blocks, no time but what is passed in (vllm/v1/core/sched/scheduler.py, 0.32). One step:
running requests first, then waiting ones, all out of one token budget; a prompt longer than what is left of the budget
is computed in chunks; when blocks run out, the request that was admitted last loses its blocks and is recomputed later.
A request is admitted only if the whole of it fits in free blocks now (`scheduler_reserve_full_isl`), and one that
reads KV from elsewhere only beside what prefills under way still need. Blocks that a step will fill are in the prefix
cache as soon as the step is planned for their request, so the next request of the same step finds them
(`allocate_slots`).
"""

from collections import deque
from collections.abc import Sequence

from loadtest.engine.blocks import Block, BlockPool
from loadtest.engine.kv_connector import KvConfig, KvConnector
from loadtest.engine.kv_events import KvEvent, KvEventQueue
from loadtest.engine.profile import Profile
from loadtest.engine.request import Job, Phase, PrefillStats
from loadtest.engine.stats import EngineStats


class Scheduler:
    """Queues and cache of one engine."""

    def __init__(self, profile: Profile, *, kv: KvConfig | None, kv_events: bool, prefix_caching: bool) -> None:
        self.profile = profile
        cache = profile.cache
        self.max_model_len = min(profile.max_model_len, cache.num_blocks * cache.block_size)
        self.events = KvEventQueue(cache.block_size, enabled=kv_events and prefix_caching)
        self.pool = BlockPool(
            cache.num_blocks,
            on_removed=self.events.removed if kv_events else None,
            on_cleared=self.events.cleared,
            caching=prefix_caching,
        )
        self.stats = EngineStats()
        self.connector = KvConnector(kv, self.pool, cache, self.events) if kv else None
        self._size = cache.block_size
        self._arriving: deque[tuple[float, Job]] = deque()
        self._waiting: deque[Job] = deque()
        self._holding: deque[Job] = deque()
        """Those that wait and hold blocks: their KV is being read. They go before `_waiting`."""
        self._num_loaded = 0
        """Of these, whose KV is there."""
        self._running: list[Job] = []
        self._filling: dict[Job, None] = {}
        """Running or loading, and with more of the prompt to compute."""
        self._preempted = False
        self._awake = False
        self._alike = False
        """The step planned gives each running request one token, and to nobody else."""

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + len(self._holding)

    def holders(self) -> list[Sequence[Block]]:
        """The blocks of each that holds some: requests, leases, and reads whose request is gone."""
        queued = [*self._running, *self._waiting, *self._holding]
        return [job.blocks for job in queued] + (self.connector.holders() if self.connector else [])

    # ---- the queues

    def _arrives(self, ready_s: float, job: Job) -> None:
        position = len(self._arriving)
        while position and self._arriving[position - 1][0] > ready_s:
            position -= 1
        self._arriving.insert(position, (ready_s, job))

    def _loaded(self, job: Job) -> None:
        """The KV that a request waited for is there (or will be computed)."""
        job.room = len(job.blocks) * self._size
        self._num_loaded += 1

    def _remove(self, job: Job) -> None:
        """Take a request out of whatever queue it is in."""
        self._filling.pop(job, None)
        if job.phase is Phase.RUNNING:
            self._running.remove(job)
        elif job in self._holding:
            self._holding.remove(job)
            self._num_loaded -= job.kv_done
        elif job in self._waiting:
            self._waiting.remove(job)
        else:
            self._arriving = deque(entry for entry in self._arriving if entry[1] is not job)

    def _filled(self, job: Job) -> None:
        """The whole prompt is computed."""
        self._filling.pop(job, None)

    def _leave(self, job: Job) -> None:
        self._running.remove(job)

    def _wake_s(self) -> float | None:
        """When there is something to do without anybody's doing: a request is ready, a lease runs out."""
        ready_s = self._arriving[0][0] if self._arriving else None
        expiry_s = self.connector.leases.next_expiry_s if self.connector else None
        if ready_s is None or (expiry_s is not None and expiry_s < ready_s):
            return expiry_s
        return ready_s

    def _take_events(self) -> tuple[KvEvent, ...]:
        return self.events.take() if self._awake else ()

    # ---- one step

    def _schedule(self, now: float) -> list[Job]:
        """Plan the step that begins at `now`: `job.count` tokens of each request returned, its blocks in place."""
        if self.connector:
            self.connector.leases.expire(now)
        while self._arriving and self._arriving[0][0] <= now:
            self._waiting.append(self._arriving.popleft()[1])
        self._preempted = False
        self._awake = bool(self._waiting or self._holding or self._running)
        whole = self.profile.scheduler.max_num_batched_tokens
        budget, planned = self._schedule_running(whole)
        if self._preempted:
            self._alike = False
        else:
            self._schedule_waiting(budget)
            self._alike = planned == whole - budget == len(self._running)
        return self._running[:planned] if budget == 0 else self._running.copy()

    def _schedule_running(self, budget: int) -> tuple[int, int]:
        """Returns (what is left of the budget, how many of the running requests got some of it)."""
        running, index = self._running, 0
        while index < len(running) and budget > 0:
            job = running[index]
            count = job.length - job.num_computed
            if count > budget:
                count = budget
            end = job.num_computed + count
            if end >= job.room and not self._secure(job, end):
                break
            job.count = count
            budget -= count
            index += 1
        return budget, index

    def _secure(self, job: Job, end: int) -> bool:
        """Blocks for tokens up to `end`, taken from the youngest if need be. False: it was the youngest itself."""
        while not self._grow(job, end):
            victim = self._running[-1]
            self._preempt(victim)
            if victim is job:
                return False
        return True

    def _schedule_waiting(self, budget: int) -> None:
        skipped: list[Job] = []
        while budget > 0 and len(self._running) < self.profile.scheduler.max_num_seqs:
            if self._num_loaded:
                job = self._holding[0]
                if not job.kv_done:
                    skipped.append(self._holding.popleft())
                    continue
            elif self._waiting:
                job = self._waiting[0]
                if not self._admit(job):
                    break
                if job.phase is Phase.WAITING_FOR_REMOTE_KV:
                    self._holding.append(self._waiting.popleft())
                    continue
            else:
                break
            count = min(job.length - job.num_computed, budget)
            if not self._grow(job, job.num_computed + count):
                break
            if job.phase is Phase.WAITING:
                self._waiting.popleft()
            else:
                self._holding.popleft()
                self._num_loaded -= 1
            if job.num_computed + count < job.length:
                self._filling[job] = None
            job.phase = Phase.RUNNING
            job.count = count
            budget -= count
            self._running.append(job)
        self._holding.extendleft(reversed(skipped))

    def _admit(self, job: Job) -> bool:
        """Look for the prompt in the prefix cache, and let the connector read the rest if it is told where."""
        size, text, pool, connector = self._size, job.text, self.pool, self.connector
        hits = pool.longest_prefix(text.keys(0, (job.length - 1) // size))
        if job.request.report_hits:
            self.events.stored(job, 0, len(hits))
        hit_tokens = len(hits) * size
        read_to = connector.tokens_to_read(job, hit_tokens) if connector else 0
        loads = read_to > hit_tokens
        missing = -(-min(job.length, self.max_model_len) // size) - len(hits)
        if not pool.fits(hits, missing):
            return False
        if loads and not pool.fits(hits, -(-read_to // size) - len(hits) + self._promised()):
            return False
        pool.hold(hits)
        text.continue_from(hits)
        job.blocks, job.num_computed, job.num_written = hits, hit_tokens, len(hits)
        job.room = hit_tokens
        if job.preemptions == 0:
            job.prefill = PrefillStats(job.num_prompt, hit_tokens, read_to - hit_tokens if loads else 0)
            looked_up = job.length if pool.caching else 0
            self.stats.count_lookup(job.length, looked_up, hit_tokens, job.prefill.cached_remote)
        else:
            self.stats.recomputed_tokens += job.lost - hit_tokens
        if loads:
            job.blocks += pool.allocate(-(-read_to // size) - len(hits)) or []
        if connector and connector.begin(job, hit_tokens, read_to):
            job.phase = Phase.WAITING_FOR_REMOTE_KV
            self._filling[job] = None
        return True

    def _promised(self) -> int:
        """Blocks that prompts under way will still need."""
        return sum(max(0, -(-job.length // self._size) - len(job.blocks)) for job in self._filling)

    def _grow(self, job: Job, end: int) -> bool:
        """Blocks for tokens up to `end`; those full by then are cached from here on. False: too few are free."""
        size = self._size
        missing = -(-end // size) - len(job.blocks)
        if missing > 0:
            blocks = self.pool.allocate(missing)
            if blocks is None:
                return False
            job.blocks += blocks
            job.room = len(job.blocks) * size
        full = end // size
        if full > job.num_written:
            job.text.fill(self.pool, job.blocks, job.num_written, full)
            self.events.stored(job, job.num_written, full)
            job.num_written = full
        return True

    def _preempt(self, job: Job) -> None:
        self._running.remove(job)
        self._filling.pop(job, None)
        self.pool.release(job.blocks)
        job.lost = job.num_computed
        job.blocks, job.room, job.num_computed, job.num_written = [], 0, 0, 0
        job.phase, job.preemptions = Phase.WAITING, job.preemptions + 1
        self._waiting.appendleft(job)
        self._preempted = True
        self.stats.preemptions += 1
