"""The people: they begin conversations when the traffic says so, wait for each answer, think, go on, or lose patience.

Rule of this room: open loop between conversations, closed inside one. Times count from when a turn was meant to be
sent, so a client that waits for one of its own slots does not hide that (no coordinated omission).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from loadtest.engine.segments import Segments
from loadtest.engine.virtual import Timer, VirtualCluster
from loadtest.experiments.gate import Ask, Gate
from loadtest.experiments.outcomes import Fate, TurnRecord
from loadtest.experiments.traffic import Arrival


@dataclass(frozen=True, slots=True)
class Patience:
    """slots: conversations at once, None for any number. Seconds: for a first token, for a whole turn.

    repeats: how often a turn that failed is sent again, repeat_s later; its times count from when it was first due.
    """

    slots: int | None = None
    first_token_s: float = 30.0
    turn_s: float = 180.0
    repeats: int = 0
    repeat_s: float = 1.0


class Client:
    """Plays all of `arrivals`. `open` tells how many conversations are not over."""

    def __init__(self, cluster: VirtualCluster, gate: Gate, arrivals: Iterator[Arrival], patience: Patience) -> None:
        self._cluster = cluster
        self._gate = gate
        self._arrivals = arrivals
        self._patience = patience
        self._waiting: deque[_Talk] = deque()
        self._free = math.inf if patience.slots is None else patience.slots
        self._next_segment = 1
        self.open = 0
        self.done = False
        self.repeated = 0
        self.turns: list[TurnRecord] = []

    def begin(self) -> None:
        self._await_next()

    @property
    def over(self) -> bool:
        """Nothing more will come."""
        return self.done and self.open == 0

    def _await_next(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is None:
            self.done = True
            return
        self._cluster.call_at(arrival.at_s, lambda: self._arrive(arrival))

    def _arrive(self, arrival: Arrival) -> None:
        self._await_next()
        self.open += 1
        talk = _Talk(self, arrival)
        if self._free > 0:
            self._free -= 1
            talk.send()
        else:
            self._waiting.append(talk)
            talk.wait()

    def left(self) -> None:
        """A conversation is over, and its slot is free."""
        self.open -= 1
        while self._waiting:
            talk = self._waiting.popleft()
            if not talk.over:
                talk.send()
                return
        self._free += 1

    def gave_up(self) -> None:
        """A conversation is over that never had a slot."""
        self.open -= 1

    def segment(self) -> int:
        """A name for tokens that nobody has said."""
        self._next_segment += 1
        return self._next_segment


class _Talk:
    """One conversation being played."""

    __slots__ = (
        "_answer",
        "_arrival",
        "_ask",
        "_at_s",
        "_client",
        "_first_s",
        "_prompt",
        "_repeats",
        "_sent_s",
        "_timer",
        "_turn",
        "over",
    )

    def __init__(self, client: Client, arrival: Arrival) -> None:
        self._client = client
        self._arrival = arrival
        self._turn = self._repeats = 0
        self._at_s = arrival.at_s
        self._sent_s = self._first_s = math.nan
        self._answer = 0
        self._ask: Ask | None = None
        self._timer: Timer | None = None
        self._prompt = Segments([(client.segment(), arrival.script.turns[0].new_tokens)])
        self.over = False

    def wait(self) -> None:
        """For a slot of the client, no longer than for a whole turn."""
        self._timer = self._cluster.call_at(self._at_s + self._client._patience.turn_s, self._gives_up)

    def send(self) -> None:
        """The next turn goes out now."""
        client, now = self._client, self._cluster.now
        script = self._arrival.script.turns[self._turn]
        self._sent_s, self._first_s = now, math.nan
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._cluster.call_at(now + client._patience.first_token_s, self._first_is_late)
        self._answer = client.segment()
        ask = Ask(
            conversation=str(self._arrival.number),
            tenant=self._arrival.tenant.encode(),
            prompt=self._prompt,
            prompt_bytes=int(len(self._prompt) * self._arrival.bytes_per_token),
            output_tokens=script.output_tokens,
            answer=self._answer,
            on_first=self._heard_first,
            on_end=self._ended,
        )
        self._ask = ask
        client._gate.ask(ask)

    @property
    def _cluster(self) -> VirtualCluster:
        return self._client._cluster

    def _heard_first(self, ask: Ask) -> None:
        self._first_s = self._cluster.now
        if self._timer is not None:
            self._timer.cancel()
        left_s = max(self._at_s + self._client._patience.turn_s, self._cluster.now)
        self._timer = self._cluster.call_at(left_s, self._turn_is_late)

    def _ended(self, ask: Ask, fate: Fate) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        patience = self._client._patience
        if fate is Fate.FAILED and self._repeats < patience.repeats:
            self._repeats += 1
            self._client.repeated += 1
            self._cluster.call_at(self._cluster.now + patience.repeat_s, self.send)
            return
        self._repeats = 0
        self._note(fate)
        turns = self._arrival.script.turns
        self._turn += 1
        if fate is not Fate.GOOD:
            self._lose_the_rest()
            self._leave()
        elif self._turn == len(turns):
            self._leave()
        else:
            following = turns[self._turn]
            prompt = self._prompt.extended(self._answer, ask.output_tokens)
            self._prompt = prompt.extended(self._client.segment(), following.new_tokens)
            self._at_s = max(self._cluster.now + following.think_s, following.not_before_s)
            if self._at_s > self._cluster.now:
                self._cluster.call_at(self._at_s, self.send)
            else:
                self.send()

    def _first_is_late(self) -> None:
        self._stop()

    def _turn_is_late(self) -> None:
        self._stop()

    def _stop(self) -> None:
        ask = self._ask
        if ask is not None and not ask.over:
            self._client._gate.abort(ask)
            self._ended(ask, Fate.TIMED_OUT)

    def _gives_up(self) -> None:
        """It never got a slot."""
        self.over = True
        self._note(Fate.TIMED_OUT)
        self._turn = 1
        self._lose_the_rest()
        self._client.gave_up()

    def _leave(self) -> None:
        self.over = True
        self._client.left()

    def _note(self, fate: Fate) -> None:
        ask, now, script = self._ask, self._cluster.now, self._arrival.script.turns[self._turn]
        first_s, output = self._first_s, script.output_tokens
        self._client.turns.append(
            TurnRecord(
                self._arrival.number,
                self._turn + 1,
                self._arrival.tenant,
                self._at_s,
                self._sent_s,
                first_s - self._at_s,
                (now - first_s) / (output - 1) if output > 1 and fate is Fate.GOOD else math.nan,
                now - self._at_s,
                len(self._prompt),
                script.new_tokens,
                output,
                0 if ask is None else ask.cached_tokens,
                "" if ask is None or ask.plan is None else str(ask.plan.route),
                fate,
            )
        )

    def _lose_the_rest(self) -> None:
        """The turns that will never be sent count as well."""
        for number, script in enumerate(self._arrival.script.turns[self._turn :], start=self._turn + 1):
            nothing = math.nan
            self._client.turns.append(
                TurnRecord(
                    self._arrival.number,
                    number,
                    self._arrival.tenant,
                    self._cluster.now,
                    nothing,
                    nothing,
                    nothing,
                    nothing,
                    0,
                    script.new_tokens,
                    script.output_tokens,
                    0,
                    "",
                    Fate.LOST,
                )
            )
