"""One row per turn: what the client measured, joined with what the gateway said of the same request.

Rule of this room: rows are joined by request id and by nothing else; a row is complete or it is not there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from loadtest.conversations import PlayedTurn
from loadtest.demo.access_log import Entry


class Row(msgspec.Struct, frozen=True):
    """One turn. Pods are short names; tokens are the pods' counts; times are the client's, in milliseconds."""

    conversation: str
    turn: int
    request_id: str
    route: str
    prefill: str | None
    decode: str
    context_tokens: int
    new_tokens: int
    output_tokens: int
    cached_tokens: int | None
    ttft_ms: float
    tpot_ms: float | None
    reason: str

    @property
    def pods(self) -> str:
        """`P1 → D2`, or `D2` alone."""
        return self.decode if self.prefill is None else f"{self.prefill} → {self.decode}"


def join(played: PlayedTurn, entry: Entry, name_of: Callable[[str], str]) -> Row:
    """The row of one request."""
    return Row(
        conversation=played.conversation,
        turn=played.turn,
        request_id=played.request_id,
        route=entry.route,
        prefill=None if entry.prefill is None else name_of(entry.prefill),
        decode=name_of(entry.answered_by),
        context_tokens=played.context_tokens,
        new_tokens=played.new_tokens,
        output_tokens=played.output_tokens,
        cached_tokens=played.cached_tokens,
        ttft_ms=played.ttft_s * 1000,
        tpot_ms=None if played.tpot_s is None else played.tpot_s * 1000,
        reason=entry.reason,
    )


class Board(Protocol):
    """Where the turns are shown as they go."""

    def sent(self, conversation: str, turn: int) -> None: ...

    def spoke(self, conversation: str, turn: int, ttft_s: float) -> None: ...

    def settled(self, row: Row) -> None: ...


class Ledger:
    """The audience of a play that also hears the gateway; a row settles when both have spoken of its request."""

    def __init__(self, board: Board, name_of: Callable[[str], str]) -> None:
        self.rows: list[Row] = []
        self._board = board
        self._name_of = name_of
        self._played: dict[str, PlayedTurn] = {}
        self._entries: dict[str, Entry] = {}
        self._settled = asyncio.Event()

    def sent(self, conversation: str, turn: int) -> None:
        self._board.sent(conversation, turn)

    def spoke(self, conversation: str, turn: int, ttft_s: float) -> None:
        self._board.spoke(conversation, turn, ttft_s)

    def ended(self, played: PlayedTurn) -> None:
        self._played[played.request_id] = played
        self._settle(played.request_id)

    def heard(self, entry: Entry) -> None:
        """The gateway's line of a request."""
        self._entries[entry.request_id] = entry
        self._settle(entry.request_id)

    async def complete(self, count: int) -> list[Row]:
        """Wait until there are that many rows; returns them by conversation and turn."""
        while len(self.rows) < count:
            self._settled.clear()
            await self._settled.wait()
        return sorted(self.rows, key=lambda row: (int(row.conversation), row.turn))

    def _settle(self, request_id: str) -> None:
        if request_id not in self._played or request_id not in self._entries:
            return
        row = join(self._played.pop(request_id), self._entries.pop(request_id), self._name_of)
        self.rows.append(row)
        self._board.settled(row)
        self._settled.set()
