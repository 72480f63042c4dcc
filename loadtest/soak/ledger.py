"""What was done to the cluster, what clients got, what the gateway noticed, and what of that no fault explains.

Rule of this room: numbers and words, no I/O and no clock. All moments are seconds since the start of the run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

FORGIVEN_S = 1.5
"""After a fault is over: a breaker may be open for so long (`breaker_open_s` and half of it)."""

UNDERSTOOD = ("500", "502", "503", "504", "broken")
"""How a request may end because of a fault: a clear status, or a stream that ends with an error event."""

REFUSED = "answer_status"
KILLED_PREFILL = "kill prefill"


@dataclass(frozen=True, slots=True)
class Trouble:
    """One fault. until: when the pod was whole again. struck: requests that met it, where the pod counts them."""

    kind: str
    pod: str
    at_s: float
    until_s: float
    struck: int | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """One request. how: "ok", a status, "broken", or what a client could make nothing of. request: its id."""

    how: str
    request: str
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class Noticed:
    """A line of the gateway's log about a fault, seen by a client or not. pod: its URL, or "-"."""

    kind: str
    pod: str
    request: str
    at_s: float


@dataclass(slots=True)
class Ledger:
    """All of one run. met: the pods that a failed request met, by its id, as far as the gateway says."""

    troubles: list[Trouble] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[Ended] = field(default_factory=list)
    noticed: list[Noticed] = field(default_factory=list)
    met: Mapping[str, Collection[str]] = field(default_factory=dict)
    conversations: int = 0
    held_back: int = 0

    def note(self, ended: Ended) -> None:
        """A request ended."""
        self.outcomes[ended.how] += 1
        if ended.how != "ok":
            self.failures.append(ended)

    def cause_of(self, ended: Ended) -> Trouble | None:
        """The last fault that explains a failure: one of a pod it met (of any, when it met none), in its time."""
        if ended.how not in UNDERSTOOD:
            return None
        return self._trouble(self.met.get(ended.request, ()), ended.began_s, ended.ended_s)

    def cause_of_noticed(self, noticed: Noticed) -> Trouble | None:
        """The fault that explains what the gateway noticed: of that pod, or of one that the request met before.

        A decode pod also refuses what a prefill pod kept for it that has been killed since.
        """
        pods = set(self.met.get(noticed.request, ())) | ({noticed.pod} - {"-"})
        found = self._trouble(pods, noticed.at_s, noticed.at_s)
        if found is None and noticed.kind == REFUSED:
            return self._trouble((), noticed.at_s, noticed.at_s, KILLED_PREFILL)
        return found

    def unexplained(self) -> list[Ended]:
        """Failures without a cause."""
        return [each for each in self.failures if self.cause_of(each) is None]

    def unexplained_notices(self) -> list[Noticed]:
        """Lines of the gateway without a cause."""
        return [each for each in self.noticed if self.cause_of_noticed(each) is None]

    def _trouble(self, pods: Collection[str], began_s: float, ended_s: float, kind: str = "") -> Trouble | None:
        first = bisect_left(self.troubles, began_s - FORGIVEN_S, key=lambda trouble: trouble.until_s)
        for trouble in reversed(self.troubles[first:]):
            if trouble.at_s <= ended_s and (not pods or trouble.pod in pods) and kind in ("", trouble.kind):
                return trouble
        return None
