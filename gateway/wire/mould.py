"""Events of a stream that are alike but for one text.

Rule of this room: a mould is what an event has before and after its text. What begins and ends so, with no quote and no
line break between but those of the mould itself, can hold nothing but other text: JSON needs a quote for anything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

_REPLIES = (b'"content":"', b'"text":"')
_TEXTS = (*_REPLIES, b'"reasoning":"')
_FIRST = b'"index":0,'
QUOTE, LINE_END = b'"\n'
"""As numbers, which `in` looks for at once. Neither stands in the text of an event in a mould."""


class Mould(NamedTuple):
    """begins: up to the first byte of the text. ends: from its closing quote. start, stop: where the text lies, from
    either end of the event. joint: what is between the texts of two events in a row. is_reply: the text is the first
    choice's answer."""

    begins: bytes
    ends: bytes
    start: int
    stop: int
    joint: bytes
    is_reply: bool


def mould_of(event: bytes) -> Mould | None:
    """From one whole event; None when it has no text, or one with quotes."""
    for name in _TEXTS:
        found = event.find(name)
        if found >= 0:
            start = found + len(name)
            closing = event.find(b'"', start)
            if closing <= start or event.find(b"\\", start, closing) >= 0:
                return None
            begins, ends = event[:start], event[closing:]
            is_reply = name in _REPLIES and begins.find(_FIRST) >= 0
            return Mould(begins, ends, start, closing - len(event), ends + begins, is_reply)
    return None


def text_of(pieces: Sequence[bytes]) -> str:
    """The text of events in one mould, one after the other. Empty when it is no JSON string."""
    raw = b"".join(pieces)
    try:
        return msgspec.json.decode(b'"%b"' % raw, type=str)
    except msgspec.DecodeError:
        return ""
