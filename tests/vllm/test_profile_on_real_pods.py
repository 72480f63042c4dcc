"""A table measured on these pods decides at least as well as the better of the two fixed policies."""

from __future__ import annotations

import argparse
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median, stdev

import pytest

from gateway.ops.cli import main
from gateway.ops.config import load
from gateway.ops.profile import command
from loadtest.conversations import PlayedTurn, Script, UserTurn, connect, play_all
from lut.raw import read_raw
from lut.table import TableSet, score
from tests.vllm.support import MODEL, VllmCluster, WatchedGateway, gateway_before, words

LOG = logging.getLogger(__name__)

pytestmark = pytest.mark.vllm

GRID = ("--contexts", "512", "--news", "48", "--outputs", "48", "--rates", "5", "--reply-tokens", "16")
SAMPLING = ("--samples", "6", "--window-s", "0")
REPEATS = (4, 8, 12)
"""Many short ones: it is the spread between repeats that says what the table can tell apart."""
POLICIES = ("pd", "local", "ppd")
ROUNDS = 20
RESAMPLED = 400
SIGMAS = 3.0
FIRST_WORDS = 400
NEXT_WORDS = 28
OUTPUT_TOKENS = 48
SYSTEM = "You answer."


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of the turns after the first, in one round."""

    ttft_s: list[float]
    tpot_s: list[float]


Round = dict[str, Costs]
"""By policy."""


class Nobody:
    def sent(self, conversation: str, turn: int) -> None: ...

    def spoke(self, conversation: str, turn: int, ttft_s: float) -> None: ...

    def ended(self, played: PlayedTurn) -> None: ...


@pytest.fixture
async def table(vllm_cluster: VllmCluster, tmp_path: Path) -> Path:
    """Profiled here and now on the real pods; with more repeats as long as noise hides which route is better."""
    raw, directory = tmp_path / "raw.jsonl", tmp_path / "table"
    for repeats in REPEATS:
        await _profile(vllm_cluster, raw, repeats)
        assert main(["lut", "build", str(raw), "-o", str(directory)]) == 0
        if not _unresolved(directory):
            break
    lines = [located.point for located in read_raw(raw).points]
    assert {line.arm for line in lines} == {"pd", "local"}
    assert len(lines) == 2 * repeats
    assert {(line.model, line.assignment, line.block_size, line.simulated) for line in lines} == {
        (MODEL, "1P_2D", 32, False)
    }
    assert all(line.success == 1.0 and line.samples == 6 for line in lines)
    return directory


async def _profile(cluster: VllmCluster, raw: Path, repeats: int) -> None:
    """`ppd-gateway profile --preset quick` on a small grid; what is in the file already is not measured again."""
    parser = argparse.ArgumentParser()
    command.add_command(parser.add_subparsers())
    arguments = ["--preset", "quick", "--out", str(raw), *GRID, *SAMPLING, "--repeats", str(repeats)]
    options = parser.parse_args(["profile", *arguments])
    pods = {"prefill": [cluster.prefill.url], "decode": [pod.url for pod in cluster.decode]}
    await command.profile(options, command.plan_of(options), load(None, {}, pods))


@pytest.fixture
async def gateways(vllm_cluster: VllmCluster, table: Path) -> AsyncIterator[dict[str, WatchedGateway]]:
    """One gateway per policy, all before the same pods."""
    async with AsyncExitStack() as stack:
        yield {
            policy: await stack.enter_async_context(gateway_before(vllm_cluster, policy, table=str(table)))
            for policy in POLICIES
        }


async def test_ppd_with_its_own_table_is_as_good_as_the_better_fixed_policy(
    gateways: dict[str, WatchedGateway], table: Path
) -> None:
    """S of what ppd decides, on conversations that nobody has profiled, against the better of the two fixed policies.

    A decision is worth what the fixed policy of the same route measured in the same round: what ppd's own run adds is
    the noise of a shared machine. ppd may be behind by the noise of the difference between the fixed policies and,
    where its table could not tell the routes apart, by what the table could not tell.
    """
    rounds = [await _round(gateways, number) for number in range(ROUNDS)]
    advantage = _advantage(rounds)
    later = [record for record in gateways["ppd"].saw.records if (record.turn or 0) > 1]
    routes = Counter(str(record.route) for record in later)
    behind = max(0.0, advantage) - advantage * routes["local"] / len(later)
    comparison, unresolved = _noise(rounds), _unresolved(table)
    told = (
        f"S of local against pd: {advantage:+.3f} ± {comparison:.3f}; the table cannot tell {unresolved:.3f}; {routes}"
    )
    LOG.info("%s", told)
    assert behind <= comparison + unresolved, told
    assert len(later) == ROUNDS * 2
    assert all("cell ctx=" in (record.reason or "") for record in later)
    assert set(routes) <= {"pd", "local"}
    assert unresolved or len(routes) == 1


async def _round(gateways: dict[str, WatchedGateway], number: int) -> Round:
    """One fresh conversation per policy, one after the other, each round beginning with another policy."""

    async def play(policy: str) -> Costs:
        async with connect(gateways[policy].url) as client:
            script = _script(f"{policy}-{number}")
            played = await play_all(client, MODEL, [script], lambda name, turn: f"{name}-{turn}", Nobody())
        later = [turn for turn in played if turn.turn > 1]
        return Costs([turn.ttft_s for turn in later], [turn.tpot_s for turn in later if turn.tpot_s is not None])

    first = number % len(POLICIES)
    return {policy: await play(policy) for policy in POLICIES[first:] + POLICIES[:first]}


def _advantage(rounds: Sequence[Round]) -> float:
    """S of local against pd at weights 1:1, of medians: this machine has other things to do."""
    ttft, tpot = (
        [median(value for one in rounds for value in getattr(one[name], field)) for name in ("pd", "local")]
        for field in ("ttft_s", "tpot_s")
    )
    return (ttft[0] - ttft[1]) / ttft[0] - (tpot[1] - tpot[0]) / tpot[0]


def _noise(rounds: Sequence[Round]) -> float:
    """99.7 % half width of the advantage: what it would be with other rounds (bootstrap)."""
    dice = random.Random(1)
    return SIGMAS * stdev(_advantage(dice.choices(rounds, k=len(rounds))) for _ in range(RESAMPLED))


def _unresolved(table: Path) -> float:
    """The noise of S in the only cell if that is a tie, else 0."""
    (found,) = TableSet.open(table).tables.values()
    told = score(found.nearest(0, 0, 0, 0), 1.0, 1.0)
    return told.noise if told.tie else 0.0


def _script(name: str) -> Script:
    said = (words(name, FIRST_WORDS), words(f"{name} b", NEXT_WORDS), words(f"{name} c", NEXT_WORDS))
    return Script(name, SYSTEM, tuple(UserTurn(text, OUTPUT_TOKENS) for text in said))
