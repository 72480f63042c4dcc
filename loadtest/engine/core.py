"""One engine: requests in, steps out.

Rule of this room: no clock, no I/O. The caller says what time it is, waits out `StepResult.duration_s` and carries out
`StepResult.pulls`. A step's effects on queues and blocks are applied when it is planned; nobody can see the difference,
since its outputs are handed over when its time is up and the next step is planned after that.

One step (vllm/v1/core/sched/scheduler.py): running requests first, then waiting ones, all out of one token budget;
a prompt longer than what is left of the budget is computed in chunks; when blocks run out, the request that was
admitted last loses its blocks and is recomputed later. Blocks that a step will fill are in the prefix cache as soon as
the step is planned for their request, so the next request of the same step finds them (`allocate_slots`).
"""

from collections import deque

from loadtest.engine import tokens
from loadtest.engine.blocks import BlockPool
from loadtest.engine.kv_connector import KvConfig, KvConnector
from loadtest.engine.kv_events import KvEventQueue
from loadtest.engine.language import Language
from loadtest.engine.profile import Profile
from loadtest.engine.request import (
    EngineOutput,
    EngineRequest,
    Finish,
    Job,
    KvOffer,
    Phase,
    PrefillStats,
    StepResult,
)
from loadtest.engine.stats import EngineStats
from loadtest.engine.tokens import TokenChain


class Engine:
    """One pod's engine. `kv` None: a plain pod without a KV connector. `kv_events`: steps say what they cached."""

    def __init__(
        self,
        profile: Profile,
        language: Language,
        *,
        kv: KvConfig | None = None,
        kv_events: bool = False,
        prefix_caching: bool = True,
    ) -> None:
        self.profile = profile
        self.language = language
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
        self.connector = KvConnector(kv, self.pool, profile.cache, self.events) if kv else None
        self._jobs: dict[str, Job] = {}
        self._arriving: deque[tuple[float, Job]] = deque()
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._outputs: list[EngineOutput] = []

    # ---- what a pod asks

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_requests(self) -> int:
        return len(self._jobs)

    def submit(self, request: EngineRequest, now: float) -> None:
        """Take a request in. It can be scheduled once the host's share of the work is done."""
        if request.request_id in self._jobs:
            raise ValueError(f"request {request.request_id} is already in the engine")
        job = Job(request, TokenChain(request.prompt, self.profile.cache.block_size), now)
        self._jobs[request.request_id] = job
        ready_s = now + self.profile.request.duration_s(job.num_prompt)
        position = len(self._arriving)
        while position and self._arriving[position - 1][0] > ready_s:
            position -= 1
        self._arriving.insert(position, (ready_s, job))

    def abort(self, request_id: str, now: float) -> bool:
        """Drop a request; its outputs end here. False if it is not (or no longer) known."""
        job = self._jobs.pop(request_id, None)
        if job is None:
            return False
        self._arriving = deque(entry for entry in self._arriving if entry[1] is not job)
        self._unqueue(job)
        self.stats.count_finish(Finish.ABORT)
        self._let_go(job, Finish.ABORT, now)
        return True

    def pull_done(self, request_id: str, digests: tuple[int, ...] | None) -> None:
        """The blocks of an order have arrived: their digests as read, or None if reading failed."""
        if self.connector is None:
            return
        job = self.connector.finish_pull(request_id, digests)
        if job is None or job.kv_done:
            return
        self._unqueue(job)
        self._jobs.pop(request_id, None)
        self.stats.count_finish(Finish.ERROR)
        self.pool.release(job.blocks)
        self._outputs.append(EngineOutput(request_id, finish=Finish.ERROR))

    def reset_prefix_cache(self) -> bool:
        return self.pool.reset()

    # ---- one step

    def step(self, now: float) -> StepResult:
        """Plan and apply the step that begins at `now`."""
        if self.connector:
            self.connector.leases.expire(now)
        while self._arriving and self._arriving[0][0] <= now:
            self._waiting.append(self._arriving.popleft()[1])
        awake = bool(self._waiting or self._running)
        plan = self._schedule_running()
        if not plan.preempted:
            self._schedule_waiting(plan)
        outputs, self._outputs = self._outputs, []
        pulls = self.connector.take_orders() if self.connector else ()
        events = self.events.take() if awake else ()
        if not plan.scheduled:
            duration = 0.0 if outputs else None
            return StepResult(duration, tuple(outputs), pulls, self._wake_s(), events)
        costs = self.profile.step
        prefills = [(job, count) for job, count in plan.scheduled if count > 1]
        decodes = [job for job, count in plan.scheduled if count == 1]
        duration = costs.duration_s(
            prefill_tokens=sum(count for _, count in prefills),
            attended_tokens=sum(job.num_computed for job, _ in prefills),
            decode_sequences=len(decodes),
            decode_context_tokens=sum(job.num_computed for job in decodes),
        )
        for job, count in plan.scheduled:
            output = self._advance(job, count, now + duration)
            if output:
                outputs.append(output)
        prefill_tokens = sum(count for _, count in prefills)
        return StepResult(duration, tuple(outputs), pulls, None, events, prefill_tokens, len(decodes))

    def _wake_s(self) -> float | None:
        times = [self._arriving[0][0]] if self._arriving else []
        expiry = self.connector.leases.next_expiry_s if self.connector else None
        if expiry is not None:
            times.append(expiry)
        return min(times, default=None)

    def _schedule_running(self) -> "_Plan":
        plan = _Plan(self.profile.scheduler.max_num_batched_tokens)
        index = 0
        while index < len(self._running) and plan.budget > 0:
            job = self._running[index]
            count = min(len(job.chain) - job.num_computed, plan.budget)
            while not self._make_room(job, count):
                victim = self._running[-1]
                self._preempt(victim, plan)
                if victim is job:
                    break
            else:
                self._plan(plan, job, count)
                index += 1
        return plan

    def _schedule_waiting(self, plan: "_Plan") -> None:
        skipped: list[Job] = []
        while self._waiting and plan.budget > 0:
            if len(self._running) >= self.profile.scheduler.max_num_seqs:
                break
            job = self._waiting[0]
            if job.phase is Phase.WAITING_FOR_REMOTE_KV and not job.kv_done:
                skipped.append(self._waiting.popleft())
                continue
            if job.phase is Phase.WAITING and not self._admit(job):
                break
            if job.phase is Phase.WAITING_FOR_REMOTE_KV and not job.kv_done:
                skipped.append(self._waiting.popleft())
                continue
            count = min(len(job.chain) - job.num_computed, plan.budget)
            if not self._make_room(job, count):
                if job.phase is Phase.WAITING:
                    self._drop_blocks(job)
                break
            self._waiting.popleft()
            job.phase = Phase.RUNNING
            self._running.append(job)
            self._plan(plan, job, count)
        self._waiting.extendleft(reversed(skipped))

    def _admit(self, job: Job) -> bool:
        """Look for the prompt in the prefix cache, and let the connector read the rest if it is told where."""
        whole = (len(job.chain) - 1) // self.profile.cache.block_size
        hits = self.pool.longest_prefix([job.key(index) for index in range(whole)])
        if job.request.report_hits:
            self.events.stored(job, 0, len(hits))
        hit_tokens = len(hits) * self.profile.cache.block_size
        read_to = self.connector.tokens_to_read(job, hit_tokens) if self.connector else 0
        self.pool.hold(hits)
        job.blocks, job.num_computed, job.num_written = list(hits), hit_tokens, len(hits)
        for block in hits:
            job.taint = tokens.mix(job.taint, block.taint) if block.taint else job.taint
        if read_to > hit_tokens and not self._make_room(job, read_to - hit_tokens):
            self._drop_blocks(job)
            return False
        if job.preemptions == 0:
            job.prefill = PrefillStats(job.num_prompt, hit_tokens, max(0, read_to - hit_tokens))
            looked_up = len(job.chain) if self.pool.caching else 0
            self.stats.count_lookup(len(job.chain), looked_up, hit_tokens, job.prefill.cached_remote)
        if self.connector and self.connector.begin(job, hit_tokens, read_to):
            job.phase = Phase.WAITING_FOR_REMOTE_KV
        return True

    def _make_room(self, job: Job, count: int) -> bool:
        size = self.profile.cache.block_size
        missing = -(-(job.num_computed + count) // size) - len(job.blocks)
        if missing <= 0:
            return True
        blocks = self.pool.allocate(missing)
        if blocks is None:
            return False
        job.blocks += blocks
        return True

    def _preempt(self, job: Job, plan: "_Plan") -> None:
        self._running.remove(job)
        self._drop_blocks(job)
        job.phase, job.preemptions, job.taint = Phase.WAITING, job.preemptions + 1, 0
        self._waiting.appendleft(job)
        plan.preempted = True
        self.stats.preemptions += 1

    def _drop_blocks(self, job: Job) -> None:
        self.pool.release(job.blocks)
        job.blocks, job.num_computed, job.num_written = [], 0, 0

    # ---- what a step does to one request

    def _advance(self, job: Job, count: int, end_s: float) -> EngineOutput | None:
        job.num_computed += count
        if job.num_computed < len(job.chain):
            return None
        token = self._sample(job)
        prefill, job.prefill = job.prefill, None
        if prefill:
            self.stats.count_prompt(prefill)
        self.stats.generation_tokens += 1
        finish, stop_token = self._finish_reason(job, token)
        if finish is None:
            return EngineOutput(job.request_id, (token,), prefill=prefill)
        self._running.remove(job)
        del self._jobs[job.request_id]
        self.stats.count_finish(finish)
        offer = self._let_go(job, finish, end_s, prefill)
        return EngineOutput(job.request_id, (token,), finish, stop_token, prefill, offer)

    def _plan(self, plan: "_Plan", job: Job, count: int) -> None:
        """Put `count` tokens of a request into the step; the blocks they fill are cached from here on."""
        plan.add(job, count)
        first, end = job.num_written, (job.num_computed + count) // self.profile.cache.block_size
        for index in range(first, end):
            self.pool.write(
                job.blocks[index],
                before=job.chain.before_block(index),
                packed=job.chain.block(index),
                taint=job.taint,
            )
            self.pool.publish(job.blocks[index], job.key(index))
        job.num_written = max(first, end)
        self.events.stored(job, first, end)

    def _sample(self, job: Job) -> int:
        request, index = job.request, job.num_output
        if job.state is None:
            digest = job.chain.text_digest()
            job.state = tokens.mix(digest, job.taint) if job.taint else digest
        if request.forced is not None:
            token = request.forced[index] if index < len(request.forced) else self.language.eos
        else:
            may_end = not request.ignore_eos and index >= request.min_tokens
            token = self.language.next_token(job.state, request.branch, index, job.chain.last, may_end=may_end)
        job.chain.append(token)
        job.num_output += 1
        return token

    def _finish_reason(self, job: Job, token: int) -> tuple[Finish | None, int | None]:
        request = job.request
        if job.num_output >= request.min_tokens:
            if token == self.language.eos and not request.ignore_eos:
                return Finish.STOP, None
            if token in request.stop_token_ids:
                return Finish.STOP, token
        if job.num_output >= request.max_tokens or len(job.chain) >= self.max_model_len:
            return Finish.LENGTH, None
        return None, None

    def _let_go(self, job: Job, finish: Finish, now: float, prefill: PrefillStats | None = None) -> KvOffer | None:
        """Free a finished request's blocks, or leave them to the connector."""
        if self.connector is None:
            self.pool.release(job.blocks)
            return None
        return self.connector.let_go(job, finish, now, prefill)

    def _unqueue(self, job: Job) -> None:
        if job in self._running:
            self._running.remove(job)
        else:
            self._waiting = deque(other for other in self._waiting if other is not job)


class _Plan:
    """What one step computes: (job, tokens) in order, out of a token budget."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.scheduled: list[tuple[Job, int]] = []
        self.preempted = False

    def add(self, job: Job, count: int) -> None:
        self.scheduled.append((job, count))
        self.budget -= count
