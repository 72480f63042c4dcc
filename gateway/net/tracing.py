"""What a trace needs to know of a request while it runs; who makes traces is not known here.

Rule of this room: a request that is not traced has no trace, and pays one comparison per leg. No message text.
"""

from __future__ import annotations

import enum
from typing import Protocol

from gateway.net.exchange import Incoming

Items = list[tuple[str, str]]


class Step(enum.StrEnum):
    """A leg of a request. RECALL: everything before a readback is begun: token ids, the holder's blocks."""

    PREFILL = "prefill"
    RECALL = "recall"
    ANSWER = "answer"


class Trace(Protocol):
    """One request's."""

    def leg(self, step: Step, pod: str, headers: Items) -> Items:
        """A leg goes out to that pod: its headers, with the trace's own in place of the client's."""

    def over(self, step: Step, fault: str | None = None) -> None:
        """The leg has ended. Those that were never said to have ended end with the request."""


class Tracer(Protocol):
    """Makes traces."""

    def begin(self, incoming: Incoming) -> Trace | None:
        """None where this request is not to be traced."""


def traced(trace: Trace | None, step: Step, pod: str, headers: Items) -> Items:
    """A leg's headers, which begin it in the trace where there is one."""
    return headers if trace is None else trace.leg(step, pod, headers)
