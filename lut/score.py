"""S: what the table's numbers say about the routes (paper, section 2).

Rule of this room: the arithmetic of S, of its noise and of degraded arms is here once; what to do about a tie, and
every other rule of routing, is the caller's. Nothing here raises.

    Δttft = (TTFT_pd − TTFT_local) / TTFT_pd        the share of the wait that staying local saves
    Δtpot = (TPOT_local − TPOT_pd) / TPOT_pd        the share by which every token becomes slower
    S     = w_ttft·Δttft − w_tpot·Δtpot             > 0: local

An arm below 95 % success loses to those above whatever S says; when all are below, the highest success wins and only
equal ones are compared by S. With `readback` as a third arm each has its own S against pd (whose S is 0), the highest
leads, and the lead must exceed the noise of the difference.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from lut.cell import HEALTHY_SUCCESS, Arm, Cell, Route


class Score(NamedTuple):
    """The outcome for one cell and one pair of weights."""

    s: float
    """S of `arm` against pd; with dttft and dtpot as in the formulas above."""
    dttft: float
    dtpot: float
    noise: float
    """95 % half width of S from the confidence intervals of the four means; an unknown interval counts as 0."""
    route: Route | None
    """None when it is a tie."""
    tie: bool
    """The lead is inside the noise (or S is not a number): `tied` are the routes to choose among."""
    degraded: str | None
    """Names of the arms below 95 % success, joined by "+"."""
    arm: Route
    """The best arm other than pd; what s, dttft, dtpot and noise speak of."""
    leader: Route
    """The route that is ahead, be it by less than the noise."""
    tied: tuple[Route, ...]
    """Empty unless `tie`."""


class _Gain(NamedTuple):
    s: float
    dttft: float
    dtpot: float
    noise: float


_NO_GAIN = _Gain(0.0, 0.0, 0.0, 0.0)
_BOTH: tuple[Route, ...] = ("pd", "local")


def score(cell: Cell, w_ttft: float, w_tpot: float) -> Score:
    """Compare the arms of `cell`. Weights are expected to be finite and not negative, but nothing raises.

    A pd arm without a TTFT gives Δttft = 0, an arm without a TPOT (one-token outputs) Δtpot = 0.
    """
    pd, local = cell.pd, cell.local
    if cell.readback is not None or pd.success < HEALTHY_SUCCESS or local.success < HEALTHY_SUCCESS:
        return _among(cell, w_ttft, w_tpot)
    s, dttft, dtpot, noise = _gain(pd, local, w_ttft, w_tpot)
    leader: Route = "local" if s > 0 else "pd"
    if abs(s) > noise:
        return Score(s, dttft, dtpot, noise, leader, False, None, "local", leader, ())
    return Score(s, dttft, dtpot, noise, None, True, None, "local", leader, _BOTH)


def _gain(pd: Arm, other: Arm, w_ttft: float, w_tpot: float) -> _Gain:
    dttft = dtpot = variance = 0.0
    if pd.ttft_mean > 0:
        dttft = (pd.ttft_mean - other.ttft_mean) / pd.ttft_mean
        if pd.ttft_ci > 0 or other.ttft_ci > 0:
            variance += w_ttft * w_ttft * _ratio_variance(other.ttft_mean, other.ttft_ci, pd.ttft_mean, pd.ttft_ci)
    if pd.tpot_mean > 0 and other.tpot_mean > 0:
        dtpot = (other.tpot_mean - pd.tpot_mean) / pd.tpot_mean
        if pd.tpot_ci > 0 or other.tpot_ci > 0:
            variance += w_tpot * w_tpot * _ratio_variance(other.tpot_mean, other.tpot_ci, pd.tpot_mean, pd.tpot_ci)
    return _Gain(w_ttft * dttft - w_tpot * dtpot, dttft, dtpot, math.sqrt(variance) if variance else 0.0)


def _ratio_variance(top: float, top_ci: float, bottom: float, bottom_ci: float) -> float:
    """Square of the half width of top/bottom, both independent."""
    from_top = max(top_ci, 0.0) / bottom
    from_bottom = top / bottom * max(bottom_ci, 0.0) / bottom
    return from_top * from_top + from_bottom * from_bottom


def _among(cell: Cell, w_ttft: float, w_tpot: float) -> Score:
    """The general case: any number of arms, any of them degraded."""
    arms: dict[Route, Arm] = {"pd": cell.pd, "local": cell.local}
    if cell.readback is not None:
        arms["readback"] = cell.readback
    gains = {name: _gain(cell.pd, arm, w_ttft, w_tpot) if name != "pd" else _NO_GAIN for name, arm in arms.items()}
    degraded = "+".join(name for name, arm in arms.items() if arm.degraded) or None
    candidates = _standing(arms)
    leader = _highest(candidates, gains)
    tied = tuple(name for name in candidates if name == leader or _inside_noise(gains[leader], gains[name]))
    tie = len(tied) > 1
    others = tuple(name for name in candidates if name != "pd") or tuple(name for name in arms if name != "pd")
    arm = _highest(others, gains)
    return Score(*gains[arm], None if tie else leader, tie, degraded, arm, leader, tied if tie else ())


def _standing(arms: dict[Route, Arm]) -> tuple[Route, ...]:
    """The arms that success lets compete."""
    healthy = tuple(name for name, arm in arms.items() if not arm.degraded)
    if healthy:
        return healthy
    best = max(arm.success for arm in arms.values())
    return tuple(name for name, arm in arms.items() if arm.success == best) or tuple(arms)


def _highest(names: tuple[Route, ...], gains: dict[Route, _Gain]) -> Route:
    """The first name with the highest S."""
    best = names[0]
    for name in names[1:]:
        if gains[name].s > gains[best].s:
            best = name
    return best


def _inside_noise(leader: _Gain, other: _Gain) -> bool:
    return not leader.s - other.s > math.hypot(leader.noise, other.noise)
