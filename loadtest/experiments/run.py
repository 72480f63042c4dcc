"""One experiment: a `Spec` in, what became of every turn out.

Rule of this room: the same spec gives the same turns, byte for byte, in whatever process it runs.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from gateway.core.drift.monitor import Drift, DriftRules
from gateway.core.load import Loads
from gateway.core.policies import POLICIES, Policy, PolicyOptions
from loadtest.engine import profile as profiles
from loadtest.engine.profile import Profile
from loadtest.experiments import assignments, fleet, scenario
from loadtest.experiments.client import Client, Patience
from loadtest.experiments.errors import ExperimentError
from loadtest.experiments.fleet import Watch
from loadtest.experiments.gate import Gate, Knobs
from loadtest.experiments.outcomes import Slo, TurnRecord
from loadtest.experiments.scenario import Event
from loadtest.experiments.traffic import Extent, Stream, traffic
from lut.table import TableSet

PROFILE = "h100-llama3.1-8b"
STEP_S = 60.0
"""The clock is played in pieces of this length, to look whether all is over."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """The pods: a profile by name or file, with what is to be different. bandwidth: bytes per second between pods.

    handover_s: that a hand-over takes of the sending engine's step; 0 for NIXL, where the reader pulls.
    """

    profile: str = PROFILE
    bandwidth: float | None = None
    max_model_len: int | None = None
    num_blocks: int | None = None
    handover_s: float | None = None

    def load(self) -> Profile:
        """Raises ExperimentError."""
        try:
            profile = _profile(self.profile)
        except (OSError, TypeError, ValueError, KeyError) as error:
            raise ExperimentError(f"profile {self.profile!r}: {error}") from None
        if self.bandwidth is not None:
            profile = profile.with_bandwidth(self.bandwidth)
        if self.num_blocks is not None:
            profile = profile.with_cache(num_blocks=self.num_blocks)
        if self.handover_s is not None:
            profile = replace(profile, step=replace(profile.step, handover_s=self.handover_s))
        if self.max_model_len is not None:
            profile = replace(profile, max_model_len=self.max_model_len)
        return profile


@lru_cache(maxsize=64)
def _profile(name: str) -> Profile:
    """Read once by each process, so that a sweep is of one profile even if its file changes meanwhile."""
    return profiles.load(name)


@dataclass(frozen=True, slots=True)
class Spec:
    """Everything that one experiment depends on. tables: of policy ppd, a directory. seed: of traffic and luck.
    drift: what policy ppd does about a table that is off. load_aware: as for serve."""

    assignment: str
    policy: str
    streams: tuple[Stream, ...]
    extent: Extent
    seed: str = "1"
    hardware: Hardware = field(default_factory=Hardware)
    knobs: Knobs = field(default_factory=Knobs)
    patience: Patience = field(default_factory=Patience)
    events: tuple[Event, ...] = ()
    tables: Path | None = None
    threshold_tokens: int = 512
    interpolate: bool = False
    drift: DriftRules | None = None
    load_aware: bool = False
    slo: Slo = field(default_factory=Slo)
    warm_up_s: float = 0.0
    """Conversations that began earlier are played, and not counted."""
    labels: tuple[tuple[str, str], ...] = ()
    """For whoever reads the row."""


@dataclass(frozen=True, slots=True)
class Result:
    """turns: of the conversations that count. link_bytes: of KV between pods; link_transfers: how many reads they were.
    ended_s: of the last turn, in virtual time."""

    spec: Spec
    turns: list[TurnRecord]
    all_turns: int
    link_bytes: int
    link_transfers: int
    ended_s: float
    preemptions: int = 0
    readback_tokens: int = 0


@dataclass(slots=True)
class Stage:
    """One experiment set up and not yet played, for those who want to look at the parts."""

    spec: Spec
    gate: Gate
    client: Client
    watch: Watch
    pods: list[str] = field(default_factory=list)


def run(spec: Spec) -> Result:
    """Play an experiment to its end. Raises ExperimentError for a spec that cannot be."""
    return play(set_up(spec))


def set_up(spec: Spec, policy: Policy | None = None) -> Stage:
    """policy: in place of the one that the spec names."""
    pods = assignments.parse(spec.assignment).pods()
    names = [pod.url for pod in pods]
    scenario.check(spec.events, names)
    knobs = replace(spec.knobs, readback=True) if spec.policy == "readback" else spec.knobs
    cluster, gateways_view = fleet.make(pods, spec.hardware.load(), readback=knobs.readback)
    if spec.load_aware or spec.policy == "queue":
        gateways_view.loads = Loads()
    watch = Watch(cluster, gateways_view, random.Random(f"luck/{spec.seed}"))
    gate = Gate(cluster, gateways_view, policy or policy_of(spec), watch, knobs)
    arrivals = traffic(spec.streams, spec.events, spec.extent, spec.seed)
    client = Client(cluster, gate, arrivals, spec.patience)
    scenario.schedule(spec.events, cluster)
    return Stage(spec, gate, client, watch, names)


def play(stage: Stage) -> Result:
    """To the end of the last conversation."""
    cluster, client, spec = stage.gate.cluster, stage.client, stage.spec
    stage.watch.begin()
    client.begin()
    until_s = 0.0
    while not client.over:
        until_s += STEP_S
        cluster.run(until_s)
    stage.watch.end()
    turns = client.turns
    if spec.warm_up_s > 0:
        early = {turn.conversation for turn in turns if turn.turn == 1 and turn.at_s < spec.warm_up_s}
        turns = [turn for turn in turns if turn.conversation not in early]
    links = list(cluster.links.values())
    return Result(
        spec=spec,
        turns=turns,
        all_turns=len(client.turns),
        link_bytes=sum(link.num_bytes for link in links),
        link_transfers=sum(link.num_transfers for link in links),
        ended_s=max((turn.at_s + turn.e2e_s for turn in client.turns if turn.e2e_s == turn.e2e_s), default=0.0),
        preemptions=sum(cluster.load(pod).preemptions for pod in stage.pods),
        readback_tokens=stage.gate.readback_tokens,
    )


def policy_of(spec: Spec) -> Policy:
    """Raises ExperimentError."""
    make = POLICIES.get(spec.policy)
    if make is None:
        raise ExperimentError(f"unknown policy {spec.policy!r}; known: {', '.join(POLICIES)}")
    tables = None if spec.tables is None else TableSet.open(spec.tables)
    drift = None if spec.drift is None else Drift(spec.drift)
    try:
        return make(PolicyOptions(spec.threshold_tokens, tables, spec.interpolate, drift))
    except ValueError as error:
        raise ExperimentError(f"policy {spec.policy}: {error}") from None
