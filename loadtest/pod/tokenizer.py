"""A word-piece tokenizer that needs no vocabulary file.

Rule of this room: `encode(decode(ids)) == ids` for every id list the language produces, so a history sent back as text
is the very history whose KV a pod holds. A piece is an optional space and up to four lower-case letters, an optional
space and up to three digits, one other byte, or a special token; its id is arithmetic, not a table look-up.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TEXT, IM_START, IM_END = range(3)
_BYTE_BASE = 16
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_DIGITS = "0123456789"
_DIGIT_BASE = _BYTE_BASE + 256
_DIGIT_COUNT = 10 + 100 + 1000
_LETTER_BASE = _DIGIT_BASE + 2 * _DIGIT_COUNT
_LETTER_COUNT = 26 + 26**2 + 26**3 + 26**4
VOCABULARY_SIZE = _LETTER_BASE + 2 * _LETTER_COUNT

_PIECE = re.compile(r"<\|endoftext\|>|<\|im_start\|>|<\|im_end\|>| ?[a-z]{1,4}| ?[0-9]{1,3}|.", re.DOTALL)


def _rank(text: str, alphabet: str) -> int:
    """Number of a non-empty string among all strings over `alphabet`, shorter ones first."""
    rank = 0
    for character in text:
        rank = rank * len(alphabet) + alphabet.index(character) + 1
    return rank - 1


def _unrank(rank: int, alphabet: str) -> str:
    rank += 1
    characters = []
    while rank:
        rank, digit = divmod(rank - 1, len(alphabet))
        characters.append(alphabet[digit])
    return "".join(reversed(characters))


@lru_cache(maxsize=1 << 18)
def _piece_ids(piece: str) -> tuple[int, ...]:
    if piece in SPECIALS:
        return (SPECIALS.index(piece),)
    body = piece[1:] if piece[0] == " " and len(piece) > 1 else piece
    spaced = len(body) != len(piece)
    if body[0] in _LETTERS:
        return (_LETTER_BASE + spaced * _LETTER_COUNT + _rank(body, _LETTERS),)
    if body[0] in _DIGITS:
        return (_DIGIT_BASE + spaced * _DIGIT_COUNT + _rank(body, _DIGITS),)
    return tuple(_BYTE_BASE + byte for byte in piece.encode("utf-8", "surrogatepass"))


@lru_cache(maxsize=1 << 18)
def token_bytes(token_id: int) -> bytes:
    """The bytes one token stands for. Raises ValueError for an id outside the vocabulary."""
    if 0 <= token_id < len(SPECIALS):
        return SPECIALS[token_id].encode()
    if _BYTE_BASE <= token_id < _DIGIT_BASE:
        return bytes((token_id - _BYTE_BASE,))
    if _DIGIT_BASE <= token_id < _LETTER_BASE:
        spaced, rank = divmod(token_id - _DIGIT_BASE, _DIGIT_COUNT)
        return (" " * spaced + _unrank(rank, _DIGITS)).encode()
    if _LETTER_BASE <= token_id < VOCABULARY_SIZE:
        spaced, rank = divmod(token_id - _LETTER_BASE, _LETTER_COUNT)
        return (" " * spaced + _unrank(rank, _LETTERS)).encode()
    if 0 <= token_id < _BYTE_BASE:
        return b""
    raise ValueError(f"Token id {token_id} is out of vocabulary")


def encode(text: str) -> list[int]:
    """Text to token ids."""
    ids: list[int] = []
    for piece in _PIECE.findall(text):
        ids.extend(_piece_ids(piece))
    return ids


def decode(token_ids: Iterable[int], *, skip_special: bool = False) -> str:
    """Token ids to text. Broken UTF-8 becomes replacement characters."""
    ids = (i for i in token_ids if not (skip_special and i < len(SPECIALS)))
    return b"".join(token_bytes(i) for i in ids).decode("utf-8", "replace")


def token_text(token_id: int) -> str:
    return token_bytes(token_id).decode("utf-8", "replace")


def text_of_tokens(token_ids: Sequence[int]) -> list[str]:
    """Each token on its own (`return_token_strs`)."""
    return [token_text(token_id) for token_id in token_ids]
