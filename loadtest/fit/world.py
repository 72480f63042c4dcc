"""Pods of one profile on a virtual clock, and turns through them.

Rule of this room: who goes where is decided by the caller; a turn is one leg or two, without HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from loadtest.engine.core import Engine
from loadtest.engine.kv_connector import KvConfig
from loadtest.engine.profile import Profile
from loadtest.engine.request import EngineOutput, EngineRequest, Finish, KvIntent
from loadtest.engine.segments import Segments
from loadtest.engine.virtual import VirtualCluster

Prompt = tuple[tuple[int, int], ...]
"""(name, tokens) of each piece; the same pieces from the start are the same tokens."""


@dataclass(slots=True)
class Turn:
    """Seconds of the virtual clock; NaN until it has happened."""

    began_s: float
    output_tokens: int
    first_s: float = float("nan")
    ended_s: float = float("nan")
    cached_tokens: int = 0

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.began_s

    @property
    def tpot_s(self) -> float:
        """Mean over the tokens after the first; 0 where there is only one."""
        return (self.ended_s - self.first_s) / max(self.output_tokens - 1, 1)


class World:
    """A cluster of equal pods by name."""

    def __init__(self, profile: Profile, names: Iterable[str]) -> None:
        self._cluster = VirtualCluster()
        for name in names:
            self._cluster.add(name, Engine(profile, kv=KvConfig(name)))
        self._requests = 0

    def call_at(self, when_s: float, action: Callable[[], None]) -> None:
        self._cluster.call_at(when_s, action)

    def run(self) -> float:
        """Until nothing is left to happen; returns the time of the last event."""
        return self._cluster.run()

    def turn(
        self,
        prefill: str | None,
        serving: str,
        prompt: Prompt,
        output_tokens: int,
        answer: int,
        ended: Callable[[], None],
    ) -> Turn:
        """Begin a turn now, through `prefill` first if there is one; `answer` names the tokens it generates."""
        turn = Turn(self._cluster.now, output_tokens)
        self._requests += 1
        name = f"t{self._requests}"
        pieces = Segments(prompt)
        if prefill is None:
            self._answer(turn, serving, EngineRequest(name, pieces, output_tokens, answer=answer), ended)
            return turn

        def prefilled(_: float, output: EngineOutput) -> None:
            if output.finish is None:
                return
            if output.offer is None:
                raise RuntimeError(f"{name}: the prefill leg ended with {output.finish} and no KV")
            kv = KvIntent(do_remote_prefill=True, source=output.offer.source)
            self._answer(turn, serving, EngineRequest(name, pieces, output_tokens, answer=answer, kv=kv), ended)

        leg = EngineRequest(name, pieces, 1, answer=answer, kv=KvIntent(do_remote_decode=True))
        self._cluster.submit(prefill, leg, prefilled)
        return turn

    def _answer(self, turn: Turn, pod: str, request: EngineRequest, ended: Callable[[], None]) -> None:
        def heard(now: float, output: EngineOutput) -> None:
            if output.prefill is not None:
                turn.first_s, turn.cached_tokens = now, output.prefill.cached_tokens
            if output.finish is not None:
                if output.finish is Finish.ERROR:
                    raise RuntimeError(f"{request.request_id}: ended with an error on {pod}")
                turn.ended_s = now
                ended()

        self._cluster.submit(pod, request, heard)
