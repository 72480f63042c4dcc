"""The words of docs/paper/engine.md.

Rule of this room: sentences around numbers that somebody else computed; a claim about a number is derived from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from loadtest.engine import profile as profiles
from loadtest.engine.profile import Profile
from loadtest.fit import grid as grid_module
from loadtest.fit.grid import Measured, Point
from loadtest.fit.paper import Numbers, compared
from loadtest.fit.paper_command import NAME as H100
from loadtest.fit.pods_command import NAME as CPU
from loadtest.fit.profile_file import measured_of
from loadtest.fit.published import figures
from loadtest.fit.published import numbers as published_numbers
from loadtest.fit.shared_prefix import interference
from loadtest.fit.turns import idle_ttfts_s

Rows = Sequence[tuple[Point, Measured]]
QUANTITIES = (
    ("ttft2_median_s", "turn-2 TTFT (median)"),
    ("tpot2_s", "turn-2 TPOT"),
    ("ttft1_s", "turn-1 TTFT"),
    ("tokens_per_s", "tokens/s"),
)


ARMS = ("replica", "pd", "partial", "local", "hybrid")


def text(numbers: Numbers, rows: Rows, points: Sequence[Point], plot: str) -> str:
    """The whole page. rows: held-out points with what the model says of them."""
    parts = [
        _head(rows, points),
        _parameters(numbers.profile, H100),
        _list_of_uses(),
        _held_out(rows),
        f"![Predicted against measured, held-out points]({plot})\n",
        _benchmark_facts(numbers),
        _interference(numbers.profile),
        _turns(numbers),
        _cpu(),
        _traps(rows),
    ]
    return "\n".join(parts)


def draw(rows: Rows, path: Path) -> None:
    """Predicted against measured, by arm."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4.6), constrained_layout=True)
    for axis, (name, title) in zip(axes, QUANTITIES[:2], strict=True):
        for arm in ARMS:
            chosen = [(getattr(p.measured, name), getattr(m, name)) for p, m in rows if p.arm == arm]
            if chosen:
                measured, said = np.array(chosen).T * 1e3
                axis.scatter(measured, said, s=6, alpha=0.5, label=arm, linewidths=0)
        every = [getattr(each, name) * 1e3 for point, said in rows for each in (point.measured, said)]
        axis.plot([min(every), max(every)], [min(every), max(every)], color="black", linewidth=0.8)
        axis.set(xscale="log", yscale="log", xlabel=f"measured, ms: {title}", ylabel="predicted, ms")
    axes[0].legend()
    figure.savefig(path, dpi=110, metadata={"Software": ""})
    plt.close(figure)


def table(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    body = ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *body]) + "\n"


def _head(rows: Rows, points: Sequence[Point]) -> str:
    calibrating = [point for point in points if point.calibrates]
    compared_numbers = sum(len(compared(point)) for point in calibrating)
    return f"""# The engine model against what was measured

Written by `python -m loadtest.fit report ppd_paper_grid.csv`; no number on this page is typed by hand. The model is
`loadtest/engine` under its virtual clock, with the profile `{H100}`.

Of the {len(points)} usable runs of the grid that the authors of arXiv 2603.13358 published (success ≥
{grid_module.MIN_SUCCESS_PCT:g} %), {len(calibrating)} set parameters ({compared_numbers} numbers): the assignments
{_words(grid_module.CALIBRATION_ASSIGNMENTS)}, the workloads {_words(grid_module.CALIBRATION_WORKLOADS)}, at
{_words(f"{rate:g}" for rate in grid_module.CALIBRATION_RATES)} conversations/s; of replicas only TTFT.
{_all_or_sample(len(rows), len(points) - len(calibrating))}

A run is one burst of ten seconds, so two runs of a kind differ too, which no model can undercut: the middle of three
neighbouring rates of an assignment and workload is off the mean of the other two by {_percent(_neighbours(points))} in
turn-2 TPOT, as a median.
"""


def _all_or_sample(played: int, held_out: int) -> str:
    if played == held_out:
        return f"The other {held_out} are predictions."
    return f"The other {held_out} are predictions; {played} of them, evenly picked, were played for this page."


def _neighbours(points: Sequence[Point]) -> float:
    """Median |middle / mean of its two neighbours in rate − 1| of turn-2 TPOT."""
    series: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        series.setdefault((point.assignment, point.workload), []).append(point)
    away = []
    for each in series.values():
        each.sort(key=lambda point: point.rate)
        values = [point.measured.tpot2_s for point in each]
        away += [abs(2 * b / (a + c) - 1) for a, b, c in zip(values, values[1:], values[2:], strict=False)]
    return float(np.median(away))


def _parameters(profile: Profile, name: str) -> str:
    lines = []
    for key, origin in profile.origins.items():
        part, _, field = key.partition(".")
        value = getattr(getattr(profile, part), field) if field else getattr(profile, part)
        error = "" if origin.error is None else f" ± {origin.error:.1g}"
        said = str(value) if isinstance(value, int) else f"{value:.4g}{error}"
        lines.append((f"`{key}`", said, origin.source))
    return f"## Parameters of `{name}`\n\nSeconds, tokens, bytes; ± is a standard error.\n\n" + table(
        ("number", "value", "source"), lines
    )


def _list_of_uses() -> str:
    lines = [(number.what, number.place, number.use) for number in published_numbers().values()]
    return "## What set parameters and what did not\n\nThe same as data: `loadtest/fit/published.toml`.\n\n" + table(
        ("published", "where", "use"), lines
    )


def _held_out(rows: Rows) -> str:
    head = ("", "runs", *(f"{title}: median, p90, bias" for _, title in QUANTITIES))

    def block(title: str, of: Callable[[Point], str], order: Sequence[str] | None = None) -> str:
        names = order or sorted({of(point) for point, _ in rows})
        lines = [_errors(name, [(p, m) for p, m in rows if of(p) == name]) for name in names]
        return f"By {title}:\n\n" + table((title, *head[1:]), [line for line in lines if line])

    return "\n".join(
        [
            "## Held-out points\n",
            "Absolute relative error of each run (median, 90th percentile) and the signed median (bias).\n",
            table(head, [_errors("all", list(rows))]),
            block("node assignment", lambda point: point.assignment),
            block("arm", lambda point: point.arm, ARMS),
            block("load", lambda point: point.load, ("low", "mid", "high")),
        ]
    )


def _errors(name: str, rows: Rows) -> tuple[str, ...]:
    if not rows:
        return ()
    cells = []
    for quantity, _ in QUANTITIES:
        away = np.array([getattr(said, quantity) / getattr(point.measured, quantity) - 1 for point, said in rows])
        size = np.abs(away)
        cells.append(
            f"{_percent(float(np.median(size)))}, {_percent(float(np.quantile(size, 0.9)))}, "
            f"{_percent(float(np.median(away)), sign=True)}"
        )
    return name, str(len(rows)), *cells


def _benchmark_facts(numbers: Numbers) -> str:
    return f"""## What of the grid is the benchmark, not the engine

`loadtest/fit/benchmark.py` plays the benchmark itself: fifty client slots that a conversation keeps between its
turns (the wait is in turn 1's TTFT), pods picked by a hash whatever their load, and a hash that changes in 2 of 9
conversations, so that as many "local" follow-ups really went through P. How it shares conversations between replicas
and decode pods where there are both is not known; they are picked alike here, and the errors of these layouts are the
larger for it. One more thing had to be assumed, and is
fitted: an answer that comes back as text is not the very tokens that were generated. On average the first
{numbers.client.answer_kept_tokens:.0f} tokens still hit the prefix cache and the rest of the answer is computed
again, on D as well as on P. Without it, a local follow-up on {2048:,} tokens of context would be predicted far too
fast.

A hand-over keeps P's own step {numbers.profile.step.handover_s * 1e3:.0f} ms longer (the paper's connector sends
from the model-runner thread): a single P passes on at most {1 / (numbers.profile.step.handover_s):.0f} prompts a
second, which is what saturates 1P_3D. vLLM's NixlConnector reads from D's side and has no such term; the profile is
of the paper's connector.
"""


def _interference(profile: Profile) -> str:
    measured = figures()
    lines = []
    for row in measured["one"]:
        model, real = interference(profile.step, row["batch"]), interference(profile.step, row["batch"], shared=False)
        lines.append(
            (
                row["batch"],
                *(f"{row[name]:g} / {1e3 * getattr(model, name + '_s'):.1f}" for name in ("alone", "full", "append")),
                *(
                    f"{_percent(row[name] / row['alone'] - 1, sign=True)} / "
                    f"{_percent(getattr(model, name + '_change'), sign=True)}"
                    for name in ("full", "append")
                ),
                f"{_percent(real.full_change, sign=True)}, {_percent(real.append_change, sign=True)}",
            )
        )
    four = measured["four"]
    said = interference(profile.step, four["batch"], 4)
    one = interference(profile.step, four["batch"])
    prefill_s = profile.step.prefill_token_s * 1024
    lost_s = one.full_s - one.append_s
    return (
        """## Interference: +48 % and +2 % explained

Published / model, ms per token of the batch (figure 2). Nothing here is fitted: the profile comes from the grid,
where no two conversations share a prefix. In the test all decoders and the appends share one of 2,048 tokens. vLLM
then reads that prefix once for the whole batch, unless one running request does not share it: a full prefill turns
that off for everybody, for all of its own 64 steps (`loadtest/fit/shared_prefix.py`). The last columns say what the
same prefills cost where nobody shares a prefix, as in real traffic.

"""
        + table(("batch", "alone", "+1 full", "+1 append", "full", "append", "no shared prefix: full, append"), lines)
        + f"""
At batch {four["batch"]} a full prefill costs {_percent(one.full_change)} and an append
{_percent(one.append_change)}, of which the {1024:,} tokens themselves ({prefill_s * 1e3:.0f} ms, once, spread over
63 steps) are {_percent(prefill_s / 63 / one.alone_s)} in both; the other {lost_s * 1e3:.1f} ms a step are the prefix
read again by every sequence. Four at once: full {_percent(said.full_change, sign=True)} (published
{_percent(four["full_change"], sign=True)}), append {_percent(said.append_change, sign=True)} (published
{_percent(four["append_change"], sign=True)}). So the pair is an artefact of the test: it says what one stranger
costs a batch that shares a prefix, not that appends are free.
"""
    )


def _turns(numbers: Numbers) -> str:
    measured = figures()["turns"]
    local, through = idle_ttfts_s(numbers, local=True), idle_ttfts_s(numbers, local=False)
    lines = [
        (
            row["turn"],
            f"{row['local_ms']} / {1e3 * local[row['turn'] - 1]:.0f}",
            f"{row['pd_ms']} / {1e3 * through[row['turn'] - 1]:.0f}",
        )
        for row in measured
    ]
    first, last = measured[0], measured[-1]
    grown_ms = 1e3 * (local[last["turn"] - 1] - local[first["turn"] - 1])
    costs = numbers.profile
    cached_us = 1e6 * (costs.request.prompt_token_s + costs.step.attended_token_s)
    return (
        """## Turns of an idle conversation

TTFT in ms, published / model: 128 tokens in and out, each turn.

"""
        + table(("turn", "local", "through P"), lines)
        + f"""
From turn {first["turn"]} to {last["turn"]} the published local TTFT grows by {last["local_ms"] - first["local_ms"]} ms,
the model's by {grown_ms:.0f} ms. In the grid, which sets the numbers, a cached token costs next to nothing
({cached_us:.1f} µs); in this run, by another client, it does. The model follows the grid, so it may take
long histories too lightly.

"""
    )


def _cpu() -> str:
    path = profiles.PROFILES / f"{CPU}.toml"
    notes = measured_of(path)
    profile = profiles.load(CPU)
    fits = [
        (key.removeprefix("fit_median_error_"), _percent(_float(value)))
        for key, value in notes.items()
        if key.startswith("fit_median_error_")
    ]
    lines = [
        (
            route,
            notes[f"unseen_{route}_turns"],
            *(_percent(_float(notes[f"unseen_{route}_{what}_median_error"])) for what in ("ttft", "tpot")),
            *(_percent(_float(notes[f"unseen_{route}_{what}_bias"]), sign=True) for what in ("ttft", "tpot")),
        )
        for route in ("pd", "local")
        if f"unseen_{route}_turns" in notes
    ]
    head = ("route", "turns", "TTFT: median error", "TPOT: median error", "mean TTFT", "mean TPOT")
    unseen = table(head, lines) if lines else "(Not measured when this profile was made.)\n"
    return (
        f"""## Real vLLM pods: `{CPU}`

{notes["engine"]} on {notes["machine"]}, {notes["date"]}. Made by `{notes["command"]}`. The fit asks designed questions
(cold prompts by length, cached prompts, batches of decoders, hand-overs) and gives the times back with these median
errors:

"""
        + table(("question", "median error"), fits)
        + f"""
A workload that it has not seen (two-turn conversations of random lengths, several at once, second turns local and
through P; `loadtest/fit/check.py`), predicted by the model turn by turn{_others(notes, "unseen")}:

{unseen}
The pods share the machine's cores with each other, their HTTP servers and the client, which the model does not know;
the more turns overlap, the slower real pods are. `tests/vllm/test_engine_profile.py` repeats fit and check, prints the
errors and asserts its bound.

"""
        + _parameters(profile, CPU)
    )


def _others(notes: Mapping[str, object], what: str) -> str:
    share = notes.get(f"others_cpu_share_{what}")
    return "" if share is None else f", while others took {_percent(_float(share))} of the cores"


def _traps(rows: Rows) -> str:
    waits = [
        (point.rate, point.measured.ttft1_s, said.ttft1_s)
        for point, said in rows
        if point.assignment == "2P_2D" and point.workload == "large_long_gen"
    ]
    lines = [(f"{rate:g}", f"{measured:.1f}", f"{said:.1f}") for rate, measured, said in sorted(waits)]
    return (
        """## Other traps

- **Crosses are crashes.** Runs below the paper's 95 % are left out of fit and check: in the raw results a point that
  fails is followed by nothing but failures until a restart, down to the lowest rate. The model has no such state and
  predicts none.
- **Fifty slots shape the latency figure.** Once all slots are taken the queue is the client's, and shows up in turn 1
  alone. Turn-1 TTFT in seconds of 2P_2D, large_long_gen (held out), by conversations/s:

"""
        + table(("rate", "measured", "model"), lines)
        + """
- **The weight frontier is a straight line in the published figure.** With queues at P a mixture of two policies lies
  below the line between them, so a convex curve of the model is no failure.
"""
    )


def _float(value: object) -> float:
    return float(str(value))


def _words(items: Iterable[str]) -> str:
    return ", ".join(items)


def _percent(value: float, *, sign: bool = False) -> str:
    return f"{100 * value:{'+' if sign else ''}.{0 if abs(value) >= 0.095 else 1}f} %"
