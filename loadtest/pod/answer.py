"""One answer growing token by token: text, stop strings, log probabilities.

Rule of this room: what vLLM's output processor does between engine and API (vllm/v1/engine/detokenizer.py): text that
may turn out to be the start of a stop string is held back until that is settled.
"""

import math
from dataclasses import dataclass, field

from loadtest.engine import tokens
from loadtest.engine.request import EngineOutput, Finish
from loadtest.pod import tokenizer
from loadtest.pod.generation import Generation


@dataclass(frozen=True, slots=True)
class Delta:
    """What one engine output adds to an answer."""

    text: str
    token_ids: tuple[int, ...]
    finish: str | None
    stop_reason: int | str | None


@dataclass(slots=True)
class Answer:
    """Answer `index` of a request."""

    index: int
    wanted: Generation
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    stop_reason: int | str | None = None
    held: str = ""
    """Tool-call arguments not streamed yet."""
    _sent: int = 0

    def feed(self, output: EngineOutput) -> Delta:
        """Take an engine output in. Raises nothing; a finish of `error` is for the caller to look at."""
        for token_id in output.token_ids:
            self._add(token_id, is_stop=output.stop_token == token_id or self._is_end(token_id, output))
        if self.finish is None and output.finish is not None:
            self.finish = str(output.finish)
            self.stop_reason = output.stop_token
        hold = 0 if self.finish else max((len(stop) for stop in self.wanted.stop), default=1) - 1
        upto = max(self._sent, len(self.text) - hold)
        text, self._sent = self.text[self._sent : upto], upto
        return Delta(text, output.token_ids, self.finish, self.stop_reason)

    def _is_end(self, token_id: int, output: EngineOutput) -> bool:
        return output.finish is Finish.STOP and token_id == output.token_ids[-1]

    def _add(self, token_id: int, *, is_stop: bool) -> None:
        self.token_ids.append(token_id)
        if is_stop and not self.wanted.include_stop:
            return
        if token_id < len(tokenizer.SPECIALS) and self.wanted.skip_special:
            return
        before = len(self.text)
        self.text += tokenizer.token_text(token_id)
        if len(self.token_ids) > self.wanted.min_tokens:
            self._look_for_stop(before)

    def _look_for_stop(self, before: int) -> None:
        for stop in self.wanted.stop:
            at = self.text.find(stop, max(0, before - len(stop) + 1))
            if at >= 0:
                self.text = self.text[: at + len(stop) if self.wanted.include_stop else at]
                self.finish, self.stop_reason = "stop", stop
                return


def logprob(token_id: int, rank: int = 0) -> float:
    """A made-up, fixed log probability: falls with the rank."""
    spread = tokens.mix(token_id, 1) % 1000 / 1000
    return -math.log(1.2 + spread) - rank


def alternatives(token_id: int, count: int) -> list[tuple[int, float]]:
    """The token itself and `count - 1` others, best first."""
    ranked = [(token_id, logprob(token_id))]
    for rank in range(1, count):
        other = tokenizer.VOCABULARY_SIZE - 1 - tokens.mix(token_id, rank) % 100_000
        ranked.append((other, logprob(token_id, rank)))
    return ranked
