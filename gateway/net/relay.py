"""Passing a stream on, from the first event that says something to the end.

Rule of this room: nothing reaches the client before the pod has said something worth keeping, and nothing is held
back after it. A stream that breaks ends with an error event; it is never continued on another pod.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from gateway.net.exchange import Outgoing, RawHeaders
from gateway.net.records import GAP_BOUNDS_S
from gateway.net.upstream import PodAnswer, PodFault
from gateway.wire.dialects import Tap
from gateway.wire.even import EvenChunks
from gateway.wire.framing import MalformedStreamError

MAX_OPENING_BYTES = 16 * 1024 * 1024
"""Of a stream before it has said something."""


@dataclass(slots=True)
class OpenStream:
    """A stream whose pod has begun to speak.

    opening: the bytes for the client that came so far. first_byte_at: monotonic seconds.
    ended: the pod has already closed it well.
    """

    answer: PodAnswer
    tap: Tap
    opening: bytes
    first_byte_at: float
    ended: bool


async def open_stream(answer: PodAnswer, tap: Tap, first_byte_s: float) -> OpenStream:
    """Wait for the first event that is more than the assistant's role. Raises PodFault.

    vLLM announces the role before it looks at what the engine said, so an engine that failed at once would
    otherwise be noticed after the client's first byte.
    """
    deadline = monotonic() + first_byte_s
    opening = b""
    first_byte_at = 0.0
    while not tap.said_something:
        chunk = await answer.next_chunk(max(0.001, deadline - monotonic()))
        if not chunk and not tap.done:
            raise PodFault("reset", "the stream ended before it said anything")
        if not chunk:
            return OpenStream(answer, tap, opening + tap.finish(), first_byte_at or monotonic(), True)
        first_byte_at = first_byte_at or monotonic()
        try:
            opening += tap.feed(chunk)
        except MalformedStreamError as broken:
            raise PodFault("malformed", str(broken)) from None
        if len(opening) > MAX_OPENING_BYTES:
            raise PodFault("malformed", "the stream says nothing at great length")
    return OpenStream(answer, tap, opening, first_byte_at, False)


def malformed(broken: MalformedStreamError, write: Callable[[bytes], object]) -> PodFault:
    """The fault of a pod that sent what is no event; what came before that goes on."""
    if broken.before:
        write(broken.before)
    return PodFault("malformed", str(broken))


@dataclass(slots=True)
class StreamEnd:
    """How a relayed stream ended: `fault` is None when the pod closed it well; last_byte_at in monotonic seconds.

    gaps: waits between two reads, counted by GAP_BOUNDS_S. Tokens that came together are one read.
    """

    fault: PodFault | None
    last_byte_at: float
    gaps: list[int] = field(default_factory=lambda: [0] * (len(GAP_BOUNDS_S) + 1))


class _Flow:
    """What comes from the pod goes to the client; chunks of even events go as they are (`ChunkSink`)."""

    __slots__ = ("_even", "_gaps", "_outgoing", "_tap", "last_at")

    _even: EvenChunks

    def __init__(self, stream: OpenStream, outgoing: Outgoing, gaps: list[int]) -> None:
        self._tap = stream.tap
        self._outgoing = outgoing
        self._gaps = gaps
        self.last_at = stream.first_byte_at

    def pass_on(self, data: bytes) -> _Flow | None:
        """A piece of the stream. Raises PodFault, ClientGoneError."""
        tap, outgoing = self._tap, self._outgoing
        if not tap.done:
            now = monotonic()
            self._gaps[bisect_left(GAP_BOUNDS_S, now - self.last_at)] += 1
            self.last_at = now
        try:
            out = tap.feed(data)
        except MalformedStreamError as broken:
            raise malformed(broken, outgoing.write) from None
        if out:
            outgoing.write(out)
        return self if outgoing.chunked else None

    def begin(self) -> bool:
        even = self._tap.even_chunks()
        if even is None:
            return False
        self._even = even
        return True

    def takes(self, chunk: bytes) -> bool:
        if not self._even.takes(chunk):
            return False
        now = monotonic()  # as in `pass_on`, without a call per event
        self._gaps[bisect_left(GAP_BOUNDS_S, now - self.last_at)] += 1
        self.last_at = now
        self._outgoing.write_raw(chunk)
        return True


async def relay_stream(stream: OpenStream, outgoing: Outgoing, headers: RawHeaders, token_gap_s: float) -> StreamEnd:
    """Send the opening and everything after it. Raises ClientGoneError; the caller closes the pod's answer."""
    tap, answer = stream.tap, stream.answer
    end = StreamEnd(None, stream.first_byte_at)
    flow = _Flow(stream, outgoing, end.gaps)
    outgoing.start(answer.status, headers)
    if stream.opening:
        outgoing.write(stream.opening)
    if not stream.ended:
        outgoing.pace(answer)
        try:
            await answer.pipe(flow.pass_on, token_gap_s)
        except PodFault as fault:
            end.fault = fault.with_traceback(None)  # which would hold this frame, and it the fault
        finally:
            end.last_byte_at = flow.last_at
            outgoing.pace(None)
    if end.fault is None and not tap.done:
        end.fault = PodFault("reset", "the stream ended without its last word")
    if end.fault is not None:
        outgoing.write(tap.error_event(f"The pod's stream broke ({end.fault.word}).", "upstream_error", 502))
    elif rest := tap.finish():
        outgoing.write(rest)
    outgoing.end()
    return end
