"""Figure 2: a batch of decoders beside full prefills and appends.

Rule of this room: two ways to the same number. With a shared prefix, as the paper's test has it, the closed form of
`loadtest.fit.shared_prefix` (one prefix read once for all, until somebody runs who does not share it); without, the
engine itself, which is what real traffic meets.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.engine.core import Engine
from loadtest.engine.profile import Profile
from loadtest.engine.request import EngineOutput, EngineRequest
from loadtest.engine.segments import Segments
from loadtest.engine.virtual import VirtualCluster
from loadtest.experiments.paper.section import Findings, Picture, Scale, Section
from loadtest.experiments.plots import Panel, Point
from loadtest.experiments.rows import Row
from loadtest.experiments.run import Hardware, Spec
from loadtest.experiments.statistics import Interval
from loadtest.fit.shared_prefix import NEW, OUTPUT, OWN, PREFIX, interference

BATCHES = (10, 30, 50, 70, 100, 130, 150, 180, 200, 220, 250)
BATCH = 200


def _evaluate(rows: Sequence[Row]) -> Findings:
    profile = Hardware().load()
    found = Findings()
    series: dict[str, list[Point]] = {"alone": [], "1 full prefill": [], "1 append": []}
    own: dict[str, list[Point]] = {name: [] for name in series}
    for batch in BATCHES:
        one = interference(profile.step, batch)
        for name, seconds in zip(series, (one.alone_s, one.full_s, one.append_s), strict=True):
            series[name].append(Point(batch, 1000 * seconds))
        for name, kind in zip(own, ("nothing", "full", "append"), strict=True):
            own[name].append(Point(batch, 1000 * on_engine(profile, batch, kind, 1)))
    for count in (1, 4):
        at = interference(profile.step, BATCH, count)
        found.ours[f"figure2.full.{count}"] = _exact(100 * at.full_change)
        found.ours[f"figure2.append.{count}"] = _exact(100 * at.append_change)
        found.ours["figure2.alone"] = _exact(1000 * at.alone_s)
    names = "batch", "decode step (ms)"
    panels = [
        Panel("one shared prefix (the paper's test)", *names, series),
        Panel("no shared prefix", *names, own),
    ]
    found.pictures = [Picture("interference", "Decode beside prefill (figure 2)", panels)]
    alone = on_engine(profile, BATCH, "nothing", 1)
    changes = [100 * (on_engine(profile, BATCH, kind, 1) / alone - 1) for kind in ("full", "append")]
    found.text = [
        f"Without a shared prefix, which is what real traffic looks like, the engine model gives {changes[0]:+.1f} % "
        f"beside a full prefill and {changes[1]:+.1f} % beside an append at batch {BATCH}: {NEW:,} new tokens cost "
        "about the same in both cases. The published pair comes from shared-prefix attention, which one request "
        "without that prefix turns off for all; see [engine.md](engine.md).",
        "",
    ]
    return found


def on_engine(profile: Profile, batch: int, kind: str, count: int) -> float:
    """TPOT of the batch in seconds when every sequence's context is its own. kind: nothing, full or append."""
    cluster = VirtualCluster()
    cluster.add("gpu", Engine(profile))
    tpot_s: list[float] = []
    started = 0

    def send(name: str, prompt: Segments, answer: int, counted: bool) -> None:
        first_s = 0.0

        def heard(now: float, output: EngineOutput) -> None:
            nonlocal first_s, started
            if output.prefill is not None:
                first_s = now
                started += counted
                if counted and started == batch:
                    interfere()
            if output.finish is not None and counted:
                tpot_s.append((now - first_s) / (OUTPUT - 1))

        cluster.submit("gpu", EngineRequest(name, prompt, OUTPUT if answer else 1, answer=answer), heard)

    def interfere() -> None:
        """Once all of the batch decode."""
        for number in range(count if kind != "nothing" else 0):
            before = [contexts[batch + number]] if kind == "append" else []
            send(f"beside{number}", Segments([*before, (9500 + number, NEW)]), 30_000 + number, counted=False)

    size = profile.cache.block_size
    contexts = [(100 + number, PREFIX // size * size) for number in range(batch + count)]
    for number, context in enumerate(contexts):
        send(f"warm{number}", Segments([context]), 0, counted=False)
    cluster.run()
    for number in range(batch):
        send(f"decode{number}", Segments([contexts[number], (9000 + number, OWN)]), 20_000 + number, counted=True)
    cluster.run()
    return sum(tpot_s) / len(tpot_s)


def _exact(value: float) -> Interval:
    return Interval(value, float("nan"), 1)


def _nothing(scale: Scale) -> list[Spec]:
    return []


SECTION = Section(
    "interference",
    "Interference",
    "One engine, 64 output tokens a request, everything of a batch at once.",
    _nothing,
    _evaluate,
)
