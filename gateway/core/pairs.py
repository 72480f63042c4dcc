"""Which pairs of a prefill and a decode pod are to be proven before they get traffic.

Rule of this room: a pair is held back from the restart of either pod until one hand-over between them has worked. A
restarted pod proves itself with some of its pairs, not with all: once enough of them have worked and none has failed,
the others are let go unproven, for what a restart can break is mostly at the pod that was restarted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

Pair = tuple[str, str]
"""The URLs of a prefill and a decode pod."""


@dataclass(slots=True, eq=False)
class Campaign:
    """All pairs of one restarted pod. proven, failed: probes that ended so."""

    pod: str
    proven: int = 0
    failed: int = 0


@dataclass(slots=True, eq=False)
class Trial:
    """A pair that is held back. tries: probes that failed. why: for people. due_at: not to be probed before."""

    pair: Pair
    campaign: Campaign
    tries: int = 0
    due_at: float = 0.0
    running: bool = False
    why: str = field(init=False)

    def __post_init__(self) -> None:
        self.why = f"not tried since {self.campaign.pod} was restarted"


class Pairs:
    """The pairs that are held back.

    held: by pair, to be looked at only; empty as a rule. enough: probes of one restarted pod that let the others go.
    """

    def __init__(self, enough: int = 8) -> None:
        self.held: dict[Pair, Trial] = {}
        self.enough = enough

    def __len__(self) -> int:
        return len(self.held)

    def fit(self, prefill: str, decode: str) -> bool:
        """Whether clients' hand-overs may go from this prefill pod to this decode pod."""
        return (prefill, decode) not in self.held

    def hold(self, pod: str, pairs: Iterable[Pair]) -> None:
        """A pod was restarted: hold its pairs back, whatever was known of them."""
        campaign = Campaign(pod)
        for pair in pairs:
            self.held[pair] = Trial(pair, campaign)

    def due(self, now_s: float) -> list[Trial]:
        """What may be probed now, those that never failed first."""
        waiting = [trial for trial in self.held.values() if not trial.running and trial.due_at <= now_s]
        return sorted(waiting, key=lambda trial: trial.tries)

    def proven(self, trial: Trial) -> bool:
        """A hand-over worked: the pair gets traffic. False where the verdict is on processes that are gone."""
        if self.held.get(trial.pair) is not trial:
            return False
        del self.held[trial.pair]
        campaign = trial.campaign
        campaign.proven += 1
        if campaign.proven >= self.enough and campaign.failed == 0:
            untried = [pair for pair, other in self.held.items() if other.campaign is campaign and not other.tries]
            for pair in untried:
                del self.held[pair]
        return True

    def failed(self, trial: Trial, why: str, due_at: float) -> bool:
        """A hand-over did not work: the pair goes on without traffic. False as in `proven`."""
        if self.held.get(trial.pair) is not trial:
            return False
        trial.tries += 1
        trial.campaign.failed += 1
        trial.why, trial.due_at = why, due_at
        return True

    def drop(self, trial: Trial) -> None:
        """There is nothing to prove: the two serve no model in common."""
        if self.held.get(trial.pair) is trial:
            del self.held[trial.pair]

    def forget(self, pod: str) -> None:
        """A pod has left the fleet."""
        for pair in [pair for pair in self.held if pod in pair]:
            del self.held[pair]

    def held_of(self, pod: str) -> dict[str, str]:
        """The other pod of every pair of this one that is held back, and why."""
        return {pair[1] if pair[0] == pod else pair[0]: trial.why for pair, trial in self.held.items() if pod in pair}
