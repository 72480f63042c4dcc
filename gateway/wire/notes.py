"""What is kept of the messages of a prompt, one note each, in whichever API they came.

Rule of this room: a note says all that is wanted of a message and depends on nothing but its bytes, so that it can be
found again; a history of some length is looked up message by message among those read before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from gateway.wire.seen import Seen

LONG_BYTES = 8_192
"""A history longer than this is looked up message by message."""

PLAIN, USER, THOUGHT = range(3)
"""Marks. USER: a user speaks. THOUGHT: it shows the model's reasoning."""

Note = tuple[bytes, bool, int]
"""Of a message: its digest, whether the model said it, its mark."""

NO_THOUGHTS: frozenset[int] = frozenset()

_NOTES_KEPT = 8_192
"""In each of two generations."""

M = TypeVar("M")

split_messages = msgspec.json.Decoder(list[msgspec.Raw]).decode
"""A list as the raw bytes of its items."""


class NoteReader(Generic[M]):
    """Reads the messages of one API. kind: what one is decoded as. note: what is kept of it."""

    def __init__(self, kind: type[M], note: Callable[[M], Note]) -> None:
        self._decode_all: Callable[[msgspec.Raw], list[M]] = msgspec.json.Decoder(list[kind]).decode  # type: ignore[valid-type]
        self._decode = msgspec.json.Decoder(kind).decode
        self._note = note
        self._seen: Seen[Note] = Seen(_NOTES_KEPT)

    def read(self, raw: msgspec.Raw) -> list[Note] | None:
        """One note a message; None when it is not a list of objects."""
        try:
            if len(raw) < LONG_BYTES:
                return [self._note(message) for message in self._decode_all(raw)]
            return [self._seen.read(message, self._work_out) for message in split_messages(raw)]
        except (msgspec.DecodeError, RecursionError):
            return None

    def _work_out(self, raw: msgspec.Raw) -> Note:
        return self._note(self._decode(raw))


def kept_thoughts(marks: Sequence[int]) -> frozenset[int]:
    """Where reasoning is behind which no user has spoken."""
    if THOUGHT not in marks:
        return NO_THOUGHTS
    behind = marks[::-1]
    end = behind.index(USER) if USER in behind else len(marks)
    return frozenset(len(marks) - 1 - place for place in range(end) if behind[place] == THOUGHT)
