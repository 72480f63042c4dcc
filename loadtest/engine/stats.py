"""Counters of one engine, as `/metrics` reports them.

Rule of this room: monotonic counts only; gauges are read off the engine itself.
"""

from collections import Counter
from dataclasses import dataclass, field

from loadtest.engine.request import Finish, PrefillStats


@dataclass(slots=True)
class EngineStats:
    prompt_tokens: int = 0
    prompt_tokens_local: int = 0
    """Of these, found in this pod's prefix cache."""
    prompt_tokens_remote: int = 0
    """Of these, read from another pod."""
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    external_queries: int = 0
    external_hits: int = 0
    preemptions: int = 0
    prefill_tokens: int = 0
    """Computed in steps, more than one of a sequence at once."""
    decode_tokens: int = 0
    """Computed in steps, one of a sequence."""
    recomputed_tokens: int = 0
    """Of these, computed before a preemption already."""
    finished: Counter[Finish] = field(default_factory=Counter)

    def count_finish(self, finish: Finish) -> None:
        self.finished[finish] += 1

    def count_prompt(self, prefill: PrefillStats) -> None:
        self.prompt_tokens += prefill.prompt_tokens
        self.prompt_tokens_local += prefill.cached_local
        self.prompt_tokens_remote += prefill.cached_remote

    def count_lookup(self, prompt_tokens: int, looked_up: int, local_hits: int, remote_hits: int) -> None:
        """One request admitted; `looked_up` is 0 where the prefix cache is off."""
        self.prefix_queries += looked_up
        self.prefix_hits += local_hits
        self.external_queries += prompt_tokens - local_hits
        self.external_hits += remote_hits
