"""The options that `simulate` and `advise` share, from the command line to specs.

Rule of this room: what is wrong is one line that names the option, before anything runs.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gateway.core.drift.monitor import DriftRules
from gateway.core.policies import POLICIES
from gateway.core.weights import Weights, parse_weights
from loadtest.experiments import assignments, scenario, sources
from loadtest.experiments.client import Patience
from loadtest.experiments.errors import ExperimentError
from loadtest.experiments.gate import Knobs
from loadtest.experiments.outcomes import Slo
from loadtest.experiments.run import PROFILE, Hardware, Spec
from loadtest.experiments.tables import table_for
from loadtest.experiments.traffic import Extent, Stream
from loadtest.experiments.workloads import Recorded, Workload
from lut.table import TableSet

THINK_S = 15.0
"""Before each later turn of conversations from data sets, which do not say."""


def add_traffic(parser: argparse.ArgumentParser) -> None:
    """What comes in."""
    group = parser.add_argument_group("traffic")
    group.add_argument("--duration", type=float, metavar="S", help="conversations begin for so long (default 60)")
    group.add_argument("--conversations", type=int, metavar="N", help="or so many of them")
    group.add_argument(
        "--think-s",
        type=float,
        metavar="S",
        help=f"mean time to think before a later turn (default: as the workload has it; {THINK_S:g} for data sets)",
    )
    group.add_argument("--arrivals", choices=["poisson", "even"], default="poisson", help="default poisson")
    group.add_argument("--warm-up", type=float, default=0.0, metavar="S", help="conversations that do not count")
    group.add_argument("--slots", type=int, metavar="N", help="conversations that the client holds at once (paper: 50)")
    group.add_argument("--patience-s", type=float, default=30.0, metavar="S", help="for a first token (default 30)")
    group.add_argument("--turn-s", type=float, default=180.0, metavar="S", help="for a whole turn (default 180)")
    group.add_argument("--seeds", type=int, default=3, metavar="N", help="runs, which give the intervals (default 3)")
    group.add_argument("--seed", type=int, default=1, metavar="N", help="the first one (default 1)")
    group.add_argument("--slo", default="ttft=500ms,tpot=30ms", metavar="T", help="default ttft=500ms,tpot=30ms")


def add_pods(parser: argparse.ArgumentParser) -> None:
    """What they are played on."""
    group = parser.add_argument_group("pods and gateway")
    group.add_argument("--profile", default=PROFILE, metavar="NAME", help=f"hardware and model (default {PROFILE})")
    group.add_argument("--bandwidth", type=float, metavar="GB/S", help="between pods (default: the profile's)")
    group.add_argument(
        "--handover-ms",
        type=float,
        metavar="MS",
        help="that a hand-over holds the prefill pod's engine (default: the profile's; NIXL: 0)",
    )
    group.add_argument("--max-model-len", type=int, metavar="N", help="default: the profile's")
    group.add_argument(
        "--table", type=Path, metavar="DIR", help="of policy ppd; default: measured on the simulated pods"
    )
    group.add_argument(
        "--threshold-tokens", type=int, default=512, metavar="N", help="of policy threshold (default 512)"
    )
    group.add_argument("--decode-max-in-flight", type=int, default=0, metavar="N", help="as for serve (default 0)")
    group.add_argument("--load-aware", action="store_true", help="as for serve: look at how busy each pod is")
    group.add_argument("--drift", action="store_true", help="as drift.mode = correct of serve")
    group.add_argument("--readback", action="store_true", help="as for serve: P may read histories back")


def add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how")
    group.add_argument("--out", type=Path, metavar="DIR", help="for results.jsonl, report.md and plots")
    group.add_argument("--jobs", type=int, metavar="N", help="processes (default: one per core)")
    group.add_argument("--quiet", action="store_true", help="no progress")


def hardware(options: argparse.Namespace) -> Hardware:
    """Raises ExperimentError."""
    if options.bandwidth is not None:
        _positive("--bandwidth", options.bandwidth)
    if options.max_model_len is not None:
        _positive("--max-model-len", options.max_model_len)
    if options.handover_ms is not None and not 0 <= options.handover_ms < 1e6:
        raise ExperimentError("--handover-ms: must be 0 or more")
    found = Hardware(
        options.profile,
        None if options.bandwidth is None else options.bandwidth * 1e9,
        options.max_model_len,
        handover_s=None if options.handover_ms is None else options.handover_ms / 1000,
    )
    found.load()
    return found


def base(options: argparse.Namespace, workload: Workload, events: Sequence[scenario.Event] = ()) -> Spec:
    """A spec with everything but assignment, policy, rate and seed. Raises ExperimentError."""
    for flag in ("patience_s", "turn_s", "slots", "conversations", "duration", "threshold_tokens"):
        value = getattr(options, flag)
        if value is not None:
            _positive("--" + flag.replace("_", "-"), value)
    if options.warm_up < 0 or not math.isfinite(options.warm_up):
        raise ExperimentError("--warm-up: must be 0 or more")
    duration = options.duration
    if duration is None and options.conversations is None and not traced(workload):
        duration = 60.0
    extent = Extent(duration, options.conversations) if duration or options.conversations else Extent(math.inf)
    return Spec(
        assignment="",
        policy="",
        streams=(Stream(workload, None, think_s=think(options, workload), arrivals=options.arrivals),),
        extent=extent,
        hardware=hardware(options),
        knobs=Knobs(decode_max_in_flight=options.decode_max_in_flight, readback=options.readback),
        patience=Patience(options.slots, options.patience_s, options.turn_s),
        events=tuple(events),
        threshold_tokens=options.threshold_tokens,
        drift=DriftRules(correct=True) if options.drift else None,
        load_aware=options.load_aware,
        slo=slo(options.slo),
        warm_up_s=options.warm_up,
    )


def traced(workload: Workload) -> bool:
    """Whether it says itself when conversations begin."""
    return isinstance(workload, Recorded) and bool(workload.recorded) and workload.recorded[0].at_s is not None


def think(options: argparse.Namespace, workload: Workload) -> float | None:
    given: float | None = options.think_s
    if given is not None:
        if not 0 <= given < 1e6:
            raise ExperimentError("--think-s: must be 0 or more")
        return given
    return THINK_S if workload.name.split("*")[-1] in ("sharegpt", "wildchat") else None


def at_rate(spec: Spec, rate: float | None) -> Spec:
    return replace(spec, streams=tuple(replace(stream, rate=rate) for stream in spec.streams))


def seeds(options: argparse.Namespace) -> list[str]:
    if not 1 <= options.seeds <= 1000:
        raise ExperimentError("--seeds: must be 1 to 1000")
    return [str(options.seed + number) for number in range(options.seeds)]


def with_tables(specs: Sequence[Spec], options: argparse.Namespace) -> list[Spec]:
    """The tables that policies like ppd need: the given one, or ones that are measured now. Raises TableError."""

    def tell(text: str) -> None:
        if not options.quiet:
            print(text, file=sys.stderr, flush=True)

    known: dict[tuple[str, Hardware], Path] = {}
    found = []
    for spec in specs:
        if spec.policy in WITHOUT_TABLE or assignments.parse(spec.assignment).prefill == 0:
            found.append(spec)
            continue
        key = spec.assignment, spec.hardware
        if key not in known:
            known[key] = options.table or table_for(spec.assignment, spec.hardware, jobs=options.jobs, tell=tell)
            TableSet.open(known[key])
        found.append(replace(spec, tables=known[key]))
    return found


WITHOUT_TABLE = ("pd", "local", "readback", "threshold", "queue")


def policies(text: str) -> list[str]:
    """Raises ExperimentError."""
    found = text.split(",")
    for name in found:
        if name not in POLICIES:
            raise ExperimentError(f"--policies: unknown policy {name!r}; known: {', '.join(POLICIES)}")
    return list(dict.fromkeys(found))


def weights(text: str) -> list[tuple[str, Weights]]:
    """Several, separated by spaces or semicolons."""
    try:
        return [(each, parse_weights(each)) for each in text.replace(";", " ").split()]
    except ValueError as error:
        raise ExperimentError(f"--weights: {error}") from None


def rates(text: str) -> list[float]:
    """Raises ExperimentError."""
    try:
        found = [float(each) for each in text.split(",")]
    except ValueError:
        raise ExperimentError(f"--rates: {text!r} is not a list like 1,2,4") from None
    for rate in found:
        _positive("--rates", rate)
    return sorted(set(found))


def slo(text: str) -> Slo:
    """`ttft=500ms,tpot=30ms`. Raises ExperimentError."""
    found = Slo()
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        unit = 1e-3 if value.endswith("ms") else 1.0
        try:
            seconds = float(value.removesuffix("ms").removesuffix("s")) * unit
        except ValueError:
            seconds = -1.0
        if not equals or name not in ("ttft", "tpot") or not 0 < seconds < math.inf:
            raise ExperimentError(f"--slo: {text!r} is not like ttft=500ms,tpot=30ms")
        found = found._replace(**{f"{name}_s": seconds})
    return found


def workloads(texts: Sequence[str]) -> list[Workload]:
    return [sources.resolve(text) for text in texts]


def _positive(flag: str, value: float) -> None:
    if not 0 < value < 1e12:
        raise ExperimentError(f"{flag}: must be above 0, not {value:g}")
