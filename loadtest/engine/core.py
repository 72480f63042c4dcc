"""One engine: requests in, steps out.

Rule of this room: no clock, no I/O. The caller says what time it is, waits out `StepResult.duration_s` and carries out
`StepResult.pulls`. A step's effects on queues and blocks are applied when it is planned; nobody can see the difference,
since its outputs are handed over when its time is up and the next step is planned after that. Who may run is in
`schedule`; here is what a step costs and gives.

Many steps at once (`leap`): while all that run decode one token a step, nobody comes, goes or looks, one step differs
from the next by the context that has grown. Such a run of steps is planned as one. Its effects are applied when it
lands, which is at the latest when somebody wants to see or change the engine (`interrupt`); it then ends with the step
that is under way.
"""

from loadtest.engine.kv_connector import KvConfig
from loadtest.engine.language import Language, NumberLanguage
from loadtest.engine.leap import Leap
from loadtest.engine.profile import Profile
from loadtest.engine.request import EngineOutput, EngineRequest, Finish, Job, KvOffer, PrefillStats, StepResult
from loadtest.engine.schedule import Scheduler
from loadtest.engine.segments import Segments
from loadtest.engine.text import NamedText, TokenText


class Engine(Scheduler):
    """One pod's engine. `kv` None: a plain pod without a KV connector. `kv_events`: steps say what they cached.

    `language` is asked for the answers to prompts of tokens. `slowdown`: how much longer steps take than the profile
    says.
    """

    def __init__(
        self,
        profile: Profile,
        language: Language | None = None,
        *,
        kv: KvConfig | None = None,
        kv_events: bool = False,
        prefix_caching: bool = True,
    ) -> None:
        super().__init__(profile, kv=kv, kv_events=kv_events, prefix_caching=prefix_caching)
        self._kv = kv
        self._kv_events = kv_events
        self.language = language or NumberLanguage()
        self.slowdown = 1.0
        self._jobs: dict[str, Job] = {}
        self._outputs: list[EngineOutput] = []
        self._leap: Leap | None = None

    @property
    def num_requests(self) -> int:
        return len(self._jobs)

    # ---- what a pod asks

    def submit(self, request: EngineRequest, now: float) -> float:
        """Take a request in. Returns when it can be scheduled: once the host's share of the work is done.

        Raises ValueError for an id that is in use and for a prompt that the context has no room for: it would wait for
        ever.
        """
        if request.request_id in self._jobs:
            raise ValueError(f"request {request.request_id} is already in the engine")
        prompt, size = request.prompt, self.profile.cache.block_size
        num_prompt = len(prompt)
        if num_prompt > self.max_model_len:
            raise ValueError(f"request {request.request_id}: {num_prompt} tokens, context {self.max_model_len}")
        end = min(num_prompt + request.max_tokens, self.max_model_len)
        text: TokenText | NamedText
        if isinstance(prompt, Segments):
            if self.events.enabled:
                raise ValueError("an engine that reports KV events needs prompts of tokens")
            text = NamedText(prompt, request.answer, end, size, request.salt)
        else:
            text = TokenText(prompt, size, request.salt)
        job = Job(request, text, num_prompt, num_prompt, end)
        self._jobs[request.request_id] = job
        ready_s = now + self.profile.request.duration_s(num_prompt)
        self._arrives(ready_s, job)
        return ready_s

    def progress(self, request_id: str) -> int:
        """Tokens of the answer so far, with those of the step under way."""
        job = self._jobs.get(request_id)
        return job.length - job.num_prompt if job else 0

    def abort(self, request_id: str, now: float) -> bool:
        """Drop a request; its outputs end here. False if it is not (or no longer) known."""
        job = self._jobs.pop(request_id, None)
        if job is None:
            return False
        self._remove(job)
        self.stats.count_finish(Finish.ABORT)
        self._let_go(job, Finish.ABORT, now)
        return True

    def pull_done(self, request_id: str, digests: tuple[int, ...] | None) -> None:
        """The blocks of an order have arrived: their digests as read, or None if reading failed."""
        if self.connector is None:
            return
        job = self.connector.finish_pull(request_id, digests)
        if job is None:
            return
        if job.kv_done:
            self._loaded(job)
            return
        self._remove(job)
        self._jobs.pop(request_id, None)
        self.stats.count_finish(Finish.ERROR)
        self.pool.release(job.blocks)
        self._outputs.append(EngineOutput(request_id, finish=Finish.ERROR, preemptions=job.preemptions))

    def reset_prefix_cache(self) -> bool:
        return self.pool.reset()

    def reborn(self) -> "Engine":
        """The same pod after a restart: nothing in it. Its slowness stays."""
        engine = Engine(
            self.profile, self.language, kv=self._kv, kv_events=self._kv_events, prefix_caching=self.pool.caching
        )
        engine.slowdown = self.slowdown
        return engine

    # ---- one step

    def step(self, now: float, *, leap: bool = False) -> StepResult:
        """Plan and apply the step that begins at `now`, or with `leap` plan as many as will be alike."""
        scheduled = self._schedule(now)
        if not scheduled and self._preempted:
            # The last one that ran had to go: whether one that waits can run was not looked at yet.
            scheduled = self._schedule(now)
        outputs, self._outputs = self._outputs, []
        pulls = self.connector.take_orders() if self.connector else ()
        events = self._take_events()
        if not scheduled:
            return StepResult(0.0 if outputs else None, tuple(outputs), pulls, self._wake_s(), events)
        if leap and self._alike and not (pulls or outputs or events):
            steps = self._steps_alike(scheduled)
            if steps > 1:
                return self._plan_leap(now, scheduled, steps)
        prefill_tokens = attended = pairs = decodes = context = handovers = sampled = 0
        speaking = []
        for job in scheduled:
            count, computed = job.count, job.num_computed
            if count == 1:
                decodes += 1
                context += computed
            else:
                prefill_tokens += count
                attended += computed
                pairs += count * computed + count * (count + 1) // 2
            job.num_computed = computed = computed + count
            if computed == job.length:
                job.length = computed + 1
                sampled += 1
                if computed + 1 >= job.quiet_until:
                    speaking.append(job)
                    kv = job.request.kv
                    handovers += kv is not None and kv.do_remote_decode and computed == job.num_prompt
        duration = self.slowdown * self.profile.step.duration_s(
            prefill_tokens=prefill_tokens,
            attended_tokens=attended,
            decode_sequences=decodes,
            decode_context_tokens=context,
            attended_pairs=pairs,
            handovers=handovers,
        )
        self.stats.prefill_tokens += prefill_tokens
        self.stats.decode_tokens += decodes
        self.stats.generation_tokens += sampled
        for job in speaking:
            outputs.append(self._speak(job, now + duration))
        return StepResult(duration, outputs, pulls, None, events, prefill_tokens, decodes)

    # ---- many steps

    def _plan_leap(self, now: float, scheduled: list[Job], steps: int) -> StepResult:
        cost, count = self.profile.step.duration_s, len(scheduled)
        context = sum([job.num_computed for job in scheduled])
        first_s, second_s = (
            self.slowdown
            * cost(prefill_tokens=0, attended_tokens=0, decode_sequences=count, decode_context_tokens=tokens)
            for tokens in (context, context + count)
        )
        leap = self._leap = Leap(now, steps, first_s, second_s - first_s, scheduled)
        if (wake_s := self._wake_s()) is not None:
            leap.limit(wake_s)
        return StepResult(leap.end_s - now, decode_sequences=count, leaps=True)

    def _steps_alike(self, scheduled: list[Job]) -> int:
        """How many steps from now on differ in nothing but context: up to the first end, and while blocks last."""
        steps = min([job.quiet_until - job.length for job in scheduled])
        each = -(-steps // self.profile.cache.block_size)
        if each * len(scheduled) > self.pool.num_free:
            # One block lasts block_size steps. Where not even one is left for each, go step by step.
            steps = min(steps, 1 + self.pool.num_free // len(scheduled) * self.profile.cache.block_size)
        return steps

    def limit(self, when: float) -> float | None:
        """Something will be there at `when`: a leap ends with the step under way then. Returns its new end, if new."""
        return self._leap.limit(when) if self._leap else None

    def interrupt(self, now: float) -> float | None:
        """Somebody comes: apply the steps of a leap up to the one under way. Returns the leap's new end, if new."""
        leap = self._leap
        if leap is None:
            return None
        end_s = leap.limit(now)
        self._apply(leap)
        return end_s

    def land(self) -> list[EngineOutput]:
        """A leap's time is over: what it gave."""
        leap, self._leap = self._leap, None
        assert leap is not None
        self._apply(leap)
        return leap.outputs

    def _apply(self, leap: Leap) -> None:
        if leap.applied:
            return
        leap.applied = True
        steps = leap.steps
        for job in leap.jobs:
            job.num_computed = computed = job.num_computed + steps
            job.length += steps
            if computed >= job.room:
                self._grow(job, computed)
        self.stats.decode_tokens += steps * len(leap.jobs)
        self.stats.generation_tokens += steps * len(leap.jobs)
        for job in leap.jobs:
            if job.length >= job.quiet_until:
                leap.outputs.append(self._speak(job, leap.end_s))

    # ---- what a step does to one request

    def _speak(self, job: Job, end_s: float) -> EngineOutput:
        """The output of a request that has just got a token: `job.length` counts it."""
        self._filled(job)
        prefill, job.prefill = job.prefill, None
        if prefill:
            self.stats.count_prompt(prefill)
        finish = Finish.LENGTH if job.length >= job.end else None
        token_ids: tuple[int, ...] = ()
        stop_token = None
        if isinstance(job.text, TokenText):
            token = self._sample(job, job.text)
            token_ids = (token,)
            finish, stop_token = self._finish_reason(job, token, finish)
        else:
            job.quiet_until = job.end
        num_tokens = job.length - job.num_prompt
        output = EngineOutput(
            job.request.request_id, token_ids, finish, stop_token, prefill, None, num_tokens, job.preemptions
        )
        if finish is not None:
            self._leave(job)
            del self._jobs[job.request.request_id]
            self.stats.count_finish(finish)
            output.offer = self._let_go(job, finish, end_s, prefill)
        return output

    def _sample(self, job: Job, text: TokenText) -> int:
        request, index = job.request, job.length - 1 - job.num_prompt
        if request.forced is not None:
            token = request.forced[index] if index < len(request.forced) else self.language.eos
        else:
            may_end = not request.ignore_eos and index >= request.min_tokens
            token = self.language.next_token(text.seed(), request.branch, index, text.chain.last, may_end=may_end)
        text.chain.append(token)
        return token

    def _finish_reason(self, job: Job, token: int, finish: Finish | None) -> tuple[Finish | None, int | None]:
        request = job.request
        if job.length - job.num_prompt >= request.min_tokens:
            if token == self.language.eos and not request.ignore_eos:
                return Finish.STOP, None
            if token in request.stop_token_ids:
                return Finish.STOP, token
        return finish, None

    def _let_go(self, job: Job, finish: Finish, now: float, prefill: PrefillStats | None = None) -> KvOffer | None:
        """Free a finished request's blocks, or leave them to the connector."""
        if self.connector is None:
            self.pool.release(job.blocks)
            return None
        return self.connector.let_go(job, finish, now, prefill)
