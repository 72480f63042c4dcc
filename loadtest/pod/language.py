"""What a simulated pod says: pronounceable nonsense.

Rule of this room: every output token is one piece the tokenizer would cut out of the text again. A word begins with a
space, except right after a newline or a special token.
"""

from loadtest.engine import tokens
from loadtest.pod import tokenizer

_CONSONANTS = "bdfgklmnprstvz"
_VOWELS = "aeiou"
_SYLLABLES = [c + v for c in _CONSONANTS for v in _VOWELS]
_WORDS = [a + b for a in _SYLLABLES for b in _SYLLABLES]
_FIRST = [tokenizer.encode(word)[0] for word in _WORDS]
_NEXT = [tokenizer.encode(" " + word)[0] for word in _WORDS]
_NEWLINE = tokenizer.encode("\n")[0]
SHORTEST_TOKENS, LONGEST_TOKENS = 24, 151


class WordLanguage:
    """Answers of 24 to 151 words, fixed by the prompt."""

    eos = tokenizer.IM_END

    def next_token(self, state: int, branch: int, index: int, previous: int, *, may_end: bool) -> int:
        seed = tokens.mix(state, branch)
        length = SHORTEST_TOKENS + seed % (LONGEST_TOKENS - SHORTEST_TOKENS + 1)
        if may_end and index >= length:
            return self.eos
        words = _FIRST if previous < len(tokenizer.SPECIALS) or previous == _NEWLINE else _NEXT
        return words[tokens.mix(seed, index) % len(words)]
