"""HTTP chunks that hold one event each, like the one before but for its text: most of what a stream is.

Rule of this room: a chunk is taken as it stands, framing and all, or not at all; what is taken goes to the client as it
is. Streams take turns, and what each of them has is out of the processor's caches by its next turn: so it is little,
and lies together.
"""

from __future__ import annotations

from gateway.wire.mould import LINE_END, QUOTE, Mould

LONGEST_CHUNK = 1024
READ_TOGETHER = 16
"""Texts that are looked at in one go."""

_NONE = b"\n"
"""What no chunk begins with."""


def _size_lines() -> list[bytes]:
    """By the length of a chunk, framing and all, the line that it begins with."""
    lines = [_NONE] * (LONGEST_CHUNK + 1)
    for size in range(1, LONGEST_CHUNK):
        line = b"%x\r\n" % size
        if (length := len(line) + size + 2) <= LONGEST_CHUNK:
            lines[length] = line
    return lines


_SIZE_LINES = _size_lines()


class EvenChunks:
    """Takes chunks as long as each is one event in the mould. texts: gets their texts, no more than READ_TOGETHER; None
    where they are of no interest."""

    __slots__ = ("_begins", "_begins_bytes", "_ends", "_stop", "_texts")

    def __init__(self, mould: Mould, texts: list[bytes] | None) -> None:
        self._begins, self._begins_bytes = mould.begins, len(mould.begins)
        self._ends, self._stop = mould.ends + b"\r\n", mould.stop - 2
        self._texts = texts

    def takes(self, chunk: bytes) -> bool:
        """False: it is something else, and nothing has happened."""
        length = len(chunk)
        if length > LONGEST_CHUNK:
            return False
        size = _SIZE_LINES[length]
        start = len(size)
        if not (chunk.startswith(size) and chunk.startswith(self._begins, start) and chunk.endswith(self._ends)):
            return False
        text = chunk[start + self._begins_bytes : self._stop]
        if QUOTE in text or LINE_END in text:
            return False
        texts = self._texts
        if texts is not None:
            if len(texts) >= READ_TOGETHER:
                return False
            texts.append(text)
        return True


def is_one_chunk(data: bytes, piece: bytes) -> bool:
    """Whether bytes that a parser of HTTP has made that piece of are one chunk, written as most write it. Then the
    parser stands between two chunks: within one, it would have taken the size for a part of the piece."""
    return len(data) < len(piece) + 12 and data == b"%x\r\n%b\r\n" % (len(piece), piece)
