"""Fits the H100 profile to the stated part of the paper's grid, and predicts the rest.

Rule of this room: a parameter is moved only by points that `grid` says may set it. The model is a simulation, so its
slopes are taken by moving one parameter at a time with the same random draws (Gauss-Newton, damped, Huber's weights).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadtest.engine.profile import Profile
from loadtest.fit.benchmark import Client, play
from loadtest.fit.grid import Measured, Point

Vector = NDArray[np.float64]

PARAMETERS = (
    "step.fixed_s",
    "step.prefill_token_s",
    "step.decode_sequence_s",
    "step.decode_context_token_s",
    "step.handover_s",
    "request.fixed_s",
    "request.prompt_token_s",
    "transfer.handover_s",
    "client.answer_kept_tokens",
)
"""What the calibration part sets. All other numbers of the profile are the GPU's, the engine's or the paper's."""

NOISE = {"ttft1_s": 0.10, "ttft2_median_s": 0.10, "tpot1_s": 0.03, "tpot2_s": 0.03}
"""What is compared, and how far one run of the grid lies from another of its kind (relative): weights of the fit."""

HUBER = 2.0
"""Differences of more than so many noises count linearly."""

PAIR_PER_PREFILL_TOKEN = 4 * 4096 * 32 / (2 * 8.03e9)
"""FLOP of one query-key pair (two products of 4,096 wide heads, 32 layers) in those of one token (8.03 B weights)."""

ROUNDS = 6
SEEDS = (1, 2)
_NUDGE = 0.08
_FLOOR = 0.02
"""A parameter does not fall below this share of where it began."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """A profile and the benchmark's client, as one set of parameters."""

    profile: Profile
    client: Client

    def values(self) -> Vector:
        return np.array([self._get(name) for name in PARAMETERS])

    def _get(self, name: str) -> float:
        part, _, field = name.partition(".")
        return float(getattr(self.client if part == "client" else getattr(self.profile, part), field))

    def having(self, values: Vector) -> Numbers:
        """The same with other parameters; attention's pairs keep their proportion to a prefill token."""
        profile, client = self.profile, self.client
        for name, value in zip(PARAMETERS, values, strict=True):
            part, _, field = name.partition(".")
            if part == "client":
                client = replace(client, **{field: float(value)})
            else:
                profile = replace(profile, **{part: replace(getattr(profile, part), **{field: float(value)})})
        step = replace(profile.step, attended_pair_s=profile.step.prefill_token_s * PAIR_PER_PREFILL_TOKEN)
        return Numbers(replace(profile, step=step), client)


@dataclass(frozen=True, slots=True)
class GridFit:
    """errors: standard errors by parameter. rounds: the loss before each and at the end."""

    numbers: Numbers
    errors: Mapping[str, float]
    losses: tuple[float, ...]
    points: int


Play = Callable[[Numbers, Sequence[Point], Sequence[int]], list[Measured]]


def predict_one(numbers: Numbers, point: Point, seeds: Sequence[int]) -> Measured:
    """The mean over seeds, of each quantity."""
    runs = [play(numbers.profile, numbers.client, point, seed) for seed in seeds]
    means = [float(np.mean([getattr(run, name) for run in runs])) for name in Measured.__slots__]
    return Measured(*means)


class Predictor:
    """Plays many points, on several processes."""

    def __init__(self, jobs: int) -> None:
        self._pool = ProcessPoolExecutor(jobs) if jobs > 1 else None

    def __enter__(self) -> Predictor:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)

    def __call__(self, numbers: Numbers, points: Sequence[Point], seeds: Sequence[int]) -> list[Measured]:
        return list(self.each([numbers] * len(points), points, seeds))

    def each(self, numbers: Sequence[Numbers], points: Sequence[Point], seeds: Sequence[int]) -> Iterator[Measured]:
        repeated = [tuple(seeds)] * len(points)
        if self._pool is None:
            return map(predict_one, numbers, points, repeated)
        return self._pool.map(predict_one, numbers, points, repeated, chunksize=2)


def fit_grid(
    start: Numbers, points: Sequence[Point], predict: Predictor, said: Callable[[str], None], rounds: int = ROUNDS
) -> GridFit:
    """Move the parameters until the calibration part is met best. Raises ValueError without any such point."""
    calibrating = [point for point in points if point.calibrates]
    if not calibrating:
        raise ValueError("no point of the calibration part is there")
    began = start.values()
    numbers, shares = start.having(began), np.ones(len(began))
    losses: list[float] = []
    damping = 0.01
    away = _differences(predict(numbers, calibrating, SEEDS), calibrating)
    slopes = np.zeros((len(away), len(began)))
    for number in range(rounds):
        losses.append(_loss(away))
        said(f"round {number}: loss {losses[-1]:.3f}")
        slopes = _slopes(start, began, shares, away, calibrating, predict)
        weights = np.minimum(1.0, HUBER / np.maximum(np.abs(away), 1e-9))
        held = slopes * weights[:, None]
        square = slopes.T @ held
        for _ in range(4):
            step = np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-9), -held.T @ away)
            trial = np.maximum(shares * np.exp(np.clip(step, -0.7, 0.7)), _FLOOR)
            trial_away = _differences(predict(start.having(began * trial), calibrating, SEEDS), calibrating)
            if _loss(trial_away) < losses[-1]:
                shares, away, damping = trial, trial_away, damping / 4
                break
            damping *= 10
        else:
            break
    losses.append(_loss(away))
    said(f"fitted: loss {losses[-1]:.3f}")
    values = began * shares
    errors = _errors(slopes, away) * values
    return GridFit(
        start.having(values), dict(zip(PARAMETERS, errors.tolist(), strict=True)), tuple(losses), len(calibrating)
    )


def _slopes(
    start: Numbers, began: Vector, shares: Vector, away: Vector, points: Sequence[Point], predict: Predictor
) -> Vector:
    """How the differences move with the logarithm of each parameter."""
    moved = []
    for index in range(len(began)):
        nudged = shares.copy()
        nudged[index] *= math.exp(_NUDGE)
        moved.append(start.having(began * nudged))
    every = list(predict.each([numbers for numbers in moved for _ in points], [*points] * len(moved), SEEDS))
    size = len(points)
    columns = [
        (_differences(every[index * size : (index + 1) * size], points) - away) / _NUDGE for index in range(len(moved))
    ]
    return np.array(columns).T


def compared(point: Point) -> tuple[str, ...]:
    """What of a point may set parameters: of a replica only TTFT, so that decode costs come from pods that only decode.

    What prefills do to the TPOT beside them is then a prediction for replicas and for local follow-ups alike.
    """
    return tuple(name for name in NOISE if point.arm != "replica" or name.startswith("ttft"))


def _differences(predicted: Sequence[Measured], points: Sequence[Point]) -> Vector:
    """ln(predicted / measured) in noises, of all that is compared."""
    return np.array(
        [
            math.log(getattr(said, name) / getattr(point.measured, name)) / NOISE[name]
            for said, point in zip(predicted, points, strict=True)
            for name in compared(point)
        ]
    )


def _loss(away: Vector) -> float:
    """Huber's, per comparison."""
    size = np.abs(away)
    return float(np.mean(np.where(size <= HUBER, 0.5 * size**2, HUBER * (size - 0.5 * HUBER))))


def _errors(slopes: Vector, away: Vector) -> Vector:
    """Relative standard errors of the parameters."""
    weights = np.minimum(1.0, HUBER / np.maximum(np.abs(away), 1e-9))
    variance = float(np.sum(weights * away**2)) / max(len(away) - slopes.shape[1], 1)
    found: Vector = np.sqrt(np.maximum(np.diag(np.linalg.pinv(slopes.T @ (slopes * weights[:, None]))), 0.0) * variance)
    return found
