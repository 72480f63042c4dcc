"""Random traffic for the laws of the engine: a small cluster, conversations on all routes, and whatever may go wrong.

Rule of this room: one seed gives one traffic, whatever the engines do with it; everything that a client or an operator
could notice is written down.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from loadtest.engine import profile
from loadtest.engine.core import Engine
from loadtest.engine.kv_connector import KvConfig
from loadtest.engine.profile import Profile, RequestCosts, StepCosts, TransferCosts
from loadtest.engine.request import EngineOutput, EngineRequest, Finish, KvIntent, KvSource
from loadtest.engine.segments import Segments
from loadtest.engine.virtual import VirtualCluster

BYTES_PER_TOKEN = 1000
PODS = ("p0", "p1", "d0", "d1")
Parts = list[tuple[int, int]]
OnEnd = Callable[[float, EngineOutput], None]


def small_profile(draw: random.Random) -> Profile:
    """A pod so small that everything happens: chunks, full queues, preemption, eviction."""
    size = draw.choice((1, 4, 16))
    sized = profile.load("instant").with_cache(block_size=size, num_blocks=draw.choice((320, 360, 480, 800)) // size)
    sized = sized.with_limits(max_num_batched_tokens=64, max_num_seqs=draw.choice((3, 8)))
    return dataclasses.replace(
        sized,
        cache=dataclasses.replace(sized.cache, bytes_per_token=BYTES_PER_TOKEN),
        step=StepCosts(1.03e-2, 2.7e-4, 1.3e-5, 7.1e-4, 1.9e-5),
        request=RequestCosts(3.17e-3, 1.1e-5),
        transfer=TransferCosts(3.1e5, 1.3e-3, 2.9e-3),
    )


@dataclass(slots=True)
class Asked:
    """One request given to a pod, and what came of it: first token and end with their times, or the abort."""

    pod: str
    request: EngineRequest
    outputs: list[tuple[float, EngineOutput]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    aborted_after: int | None = None

    @property
    def ended(self) -> bool:
        return self.aborted_after is not None or any(output.finish for _, output in self.outputs)

    def told(self) -> tuple[object, ...]:
        """Everything but times."""
        outputs = [(o.prefill, o.finish, o.num_tokens, o.preemptions) for _, o in self.outputs]
        return self.pod, self.request.request_id, self.aborted_after, outputs


class Traffic:
    """Plays one seed. `asked` is the record; `watch` is called after every event.

    `named` False: the same prompts as token ids. `gentle`: nobody gives up and no pod dies.
    """

    def __init__(
        self,
        seed: int,
        *,
        talks: int = 4,
        leaps: bool = True,
        named: bool = True,
        gentle: bool = False,
        watch: Callable[[Traffic], None] | None = None,
        nic_bytes_per_s: float | None = None,
    ) -> None:
        draw = random.Random(seed)
        self.profile = small_profile(draw)
        self.cluster = VirtualCluster(leaps=leaps)
        self._reads_back = {}
        for name in PODS:
            self._reads_back[name] = draw.random() < 0.5
            kv = KvConfig(
                name,
                lease_s=1.5,
                decoder_lease_s=4.0,
                bidirectional=self._reads_back[name],
                recompute_threshold_tokens=4,
                recompute_on_failure=draw.random() < 0.5,
            )
            self.cluster.add(name, Engine(self.profile, kv=kv), nic_bytes_per_s=nic_bytes_per_s)
        self.asked: list[Asked] = []
        self.events = 0
        self._named = named
        self._gentle = gentle
        self._watch = watch
        self._said: dict[int, list[int]] = {}
        for talk in range(talks):
            self._plan_talk(random.Random(f"{seed}/{talk}"), talk)
        if not gentle:
            self._plan_accidents(random.Random(f"{seed}/accidents"))

    def play(self) -> Traffic:
        while self.cluster.step_once():
            self.events += 1
            if self._watch:
                self._watch(self)
        return self

    def told(self) -> list[tuple[object, ...]]:
        return [asked.told() for asked in self.asked]

    def times(self) -> list[float]:
        return [when for asked in self.asked for when, _ in asked.outputs]

    # ---- what happens

    def _plan_talk(self, draw: random.Random, talk: int) -> None:
        turns = [
            (draw.choice(("pd", "local", "readback")), draw.randint(1, 40), draw.randint(1, 30), draw.uniform(0.0, 0.4))
            for _ in range(4)
        ]
        begin: Parts = [(1, draw.choice((9, 32)))] if draw.random() < 0.6 else []
        prefill, decode = draw.choice(("p0", "p1")), draw.choice(("d0", "d1"))
        aborts = [draw.uniform(0.0, 1.5) if draw.random() < 0.15 else None for _ in turns]
        held: list[KvSource | None] = [None]

        def turn(index: int, parts: Parts) -> None:
            if index == len(turns):
                return
            route, new, answer, think_s = turns[index]
            asked, said = [*parts, (1000 * talk + 10 * index + 2, new)], 1000 * talk + 10 * index + 3

            def over(now: float, output: EngineOutput) -> None:
                held[0] = output.offer.source if output.offer else None
                longer = [*asked, (said, output.num_tokens)] if output.num_tokens else asked
                self.cluster.call_at(now + think_s, lambda: turn(index + 1, longer))

            def second_leg(now: float, output: EngineOutput) -> None:
                if output.finish is Finish.LENGTH and output.offer:
                    kv = KvIntent(do_remote_prefill=True, source=output.offer.source)
                    self._ask(decode, f"{talk}/{index}", asked, answer, said, kv, over, aborts[index])
                else:
                    over(now, output)

            if route == "local":
                self._ask(decode, f"{talk}/{index}", asked, answer, said, None, over, aborts[index])
                return
            source = held[0] if route == "readback" and self._reads_back[prefill] else None
            kv = KvIntent(do_remote_decode=True, source=source)
            self._ask(prefill, f"{talk}/{index}", asked, 1, said, kv, second_leg, None)

        self.cluster.call_at(draw.uniform(0.0, 2.0), lambda: turn(0, begin))

    def _plan_accidents(self, draw: random.Random) -> None:
        call_at, cluster = self.cluster.call_at, self.cluster
        for _ in range(draw.randint(0, 2)):
            when, pod = draw.uniform(0.0, 4.0), draw.choice(PODS)
            if draw.random() < 0.5:
                call_at(when, lambda pod=pod: cluster.kill(pod))
                call_at(when + draw.uniform(0.1, 1.0), lambda pod=pod: cluster.restart(pod))
            else:
                factor = draw.uniform(0.5, 3.0)
                call_at(when, lambda pod=pod, factor=factor: cluster.set_slowdown(pod, factor))
        for _ in range(3):
            when, pod = draw.uniform(0.0, 4.0), draw.choice(PODS)
            call_at(when, lambda pod=pod: cluster.load(pod))

    def _ask(
        self,
        pod: str,
        name: str,
        parts: Parts,
        max_tokens: int,
        said: int,
        kv: KvIntent,
        on_end: OnEnd,
        abort_s: float | None,
    ) -> None:
        prompt = Segments(parts) if self._named else self._tokens(parts)
        asked = Asked(pod, EngineRequest(name, prompt, max_tokens, answer=said, ignore_eos=True, kv=kv))
        self.asked.append(asked)

        def heard(now: float, output: EngineOutput) -> None:
            asked.tokens += output.token_ids
            if output.prefill or output.finish:
                asked.outputs.append((now, output))
            if output.finish:
                self._said[said] = asked.tokens
                on_end(now, output)

        def give_up() -> None:
            if not asked.ended:
                asked.aborted_after = self.cluster.abort(pod, name)

        self.cluster.submit(pod, asked.request, heard)
        if abort_s is not None and not self._gentle:
            self.cluster.call_at(self.cluster.now + abort_s, give_up)

    def _tokens(self, parts: Parts) -> list[int]:
        return [
            token
            for name, length in parts
            for token in self._said.get(name) or range(100_000 + 1000 * name, 100_000 + 1000 * name + length)
        ]
