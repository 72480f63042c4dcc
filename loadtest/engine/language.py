"""What the modelled model says.

Rule of this room: the next token is a pure function of what the prompt's KV holds (`state`), which of the n answers it
is (`branch`) and the position. Sampling parameters and seeds change nothing, so equal prompts give equal answers on
every pod and every path, and one other token in the prompt gives another answer.
"""

from typing import Protocol

from loadtest.engine import tokens


class Language(Protocol):
    """Chooses output tokens."""

    eos: int

    def next_token(self, state: int, branch: int, index: int, previous: int, *, may_end: bool) -> int:
        """Output token number `index` (from 0) after token `previous`; `eos` only when `may_end`."""
        ...


class NumberLanguage:
    """A language of bare token ids, for experiments that never look at text."""

    def __init__(self, vocabulary: int = 50_000, eos: int = 0, length: int | None = None) -> None:
        self.eos = eos
        self._vocabulary = vocabulary
        self._length = length

    def next_token(self, state: int, branch: int, index: int, previous: int, *, may_end: bool) -> int:
        if may_end and self._length is not None and index >= self._length:
            return self.eos
        return 1 + tokens.mix(tokens.mix(state, branch), index) % (self._vocabulary - 1)
