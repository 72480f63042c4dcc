"""`ppd-gateway profile …`.

Rule of this room: arguments in, a plan and a bench out; what is wrong is one line on stderr and exit status 2, before
anything is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from gateway.core.pods import Role
from gateway.ops import logs
from gateway.ops.config import Config, load
from gateway.ops.profile.bench import LiveBench
from gateway.ops.profile.book import Book, Identity
from gateway.ops.profile.campaign import carry_out
from gateway.ops.profile.errors import ProfileError
from gateway.ops.profile.measure import Limits
from gateway.ops.profile.plan import ARMS, REPLY_TOKENS, Plan, estimate_s, grid
from gateway.ops.profile.pods import look_at
from gateway.ops.profile.presets import PRESETS
from gateway.ops.profile.progress import Progress, clock
from gateway.ops.settings import BY_KEY
from lut.cell import ARMS as KNOWN_ARMS
from lut.errors import TableError

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
IN_FLIGHT_PER_DECODE_POD = 256
"""vLLM's usual --max-num-seqs."""

Number = TypeVar("Number", int, float)


def add_command(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `profile`; it sets `run`, which takes the options and returns the exit status."""
    parser = subparsers.add_parser(
        "profile", help="measure on live pods what each route costs", allow_abbrev=False, description=__doc__
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="the same file as for `serve`")
    for key in ("prefill", "decode"):
        parser.add_argument(f"--{key}", action="append", metavar="URL", help=BY_KEY[key].help)
    parser.add_argument("--out", type=Path, metavar="FILE", help="raw file to write, or to go on with")
    parser.add_argument("--preset", choices=list(PRESETS), default="quick", help="grid (default quick)")
    parser.add_argument("--contexts", type=_list(int), metavar="N,N", help="context tokens before the turn")
    parser.add_argument("--news", type=_list(int), metavar="N,N", help="new tokens of the turn")
    parser.add_argument("--outputs", type=_list(int), metavar="N,N", help="tokens of its answer")
    parser.add_argument(
        "--reply-tokens",
        type=int,
        metavar="N",
        help=f"of the context, the last answer (default {REPLY_TOKENS}; at most half of the context)",
    )
    parser.add_argument("--rates", type=_list(float), metavar="Q,Q", help="measured turns per second at the gateway")
    parser.add_argument("--samples", type=int, metavar="N", help="turns measured per cell and repeat, at least")
    parser.add_argument("--window-s", type=float, metavar="S", help="and for at least so long")
    parser.add_argument("--repeats", type=int, metavar="N", help="3 or more give a confidence interval worth its name")
    parser.add_argument("--arms", type=_names, metavar="ARM,ARM", help="of pd,local,readback (default pd,local)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the arrival times (default 1)")
    parser.add_argument("--model", metavar="NAME", help="when the pods serve several")
    parser.add_argument("--max-in-flight", type=int, metavar="N", help="more turns than this at once: overloaded")
    parser.add_argument("--patience-s", type=float, default=30.0, metavar="S", help="for a first token (default 30)")
    parser.add_argument("--simulated", action="store_true", help="mark the lines as simulated, whatever the pods say")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and how long it will take")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Raises ConfigError, which the caller prints like any."""
    try:
        plan = plan_of(options)
        config = load(options.config, os.environ, {"prefill": options.prefill, "decode": options.decode})
        logs.set_up("error")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(profile(options, plan, config))
    except (ProfileError, TableError) as error:
        print(f"ppd-gateway: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("\nppd-gateway: interrupted; the same command goes on from here", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 0


def plan_of(options: argparse.Namespace) -> Plan:
    """The preset with what the flags change. Raises ProfileError."""
    preset = PRESETS[options.preset]
    shapes = preset.shapes()
    if any(value is not None for value in (options.contexts, options.news, options.outputs, options.reply_tokens)):
        shapes = grid(
            options.contexts or preset.contexts,
            options.news or preset.news,
            options.outputs or preset.outputs,
            REPLY_TOKENS if options.reply_tokens is None else options.reply_tokens,
        )
    if options.patience_s <= 0:
        raise ProfileError("--patience-s: must be above 0")
    return Plan(
        shapes=shapes,
        rates=options.rates or preset.rates,
        arms=options.arms or ARMS,
        samples=preset.samples if options.samples is None else options.samples,
        window_s=preset.window_s if options.window_s is None else options.window_s,
        repeats=preset.repeats if options.repeats is None else options.repeats,
        seed=options.seed,
    )


def describe(plan: Plan) -> str:
    """The plan in a few lines, with its estimated duration."""
    shapes = plan.shapes
    axes = (
        ("context", sorted({shape.context_tokens for shape in shapes})),
        ("new", sorted({shape.new_tokens for shape in shapes})),
        ("output", sorted({shape.output_tokens for shape in shapes})),
        ("rate", plan.rates),
    )
    lines = [f"{len(shapes)} workloads x {len(plan.rates)} rates x {len(plan.arms)} arms x {plan.repeats} repeats:"]
    lines[0] += f" {plan.num_tasks} cells to measure"
    lines += [f"  {name:<8}{' '.join(f'{value:g}' for value in values)}" for name, values in axes]
    lines.append(f"  arms    {' '.join(plan.arms)}")
    lines.append(f"  each    at least {plan.samples} turns and {plan.window_s:g} s of arrivals")
    lines.append(f"about {clock(sum(map(estimate_s, plan.tasks())))} on pods with an H100 each and an 8B model")
    return "\n".join(lines)


async def profile(options: argparse.Namespace, plan: Plan, config: Config) -> None:
    """Print the plan, or carry it out. Raises ProfileError, TableError."""
    if options.dry_run:
        print(describe(plan))
        return
    if options.out is None:
        raise ProfileError("--out: say which raw file to write")
    cluster = await look_at(config, options.model)
    plan = _that_fits(plan, cluster.max_model_len)
    simulated = cluster.simulated or options.simulated
    decode = config.count(Role.DECODE)
    limits = Limits(options.max_in_flight or IN_FLIGHT_PER_DECODE_POD * decode, options.patience_s)
    with Book(options.out, Identity(cluster.assignment, cluster.model, cluster.block_size, simulated)) as book:
        if book.torn is not None:
            print(f"ppd-gateway: {book.torn}", file=sys.stderr)
        print(f"{cluster.assignment} {cluster.model}{' SIMULATED' if simulated else ''}; {describe(plan)}")
        progress = Progress(plan, sys.stdout, sys.stderr if sys.stderr.isatty() else None)
        try:
            async with LiveBench(config, cluster, limits, plan.seed) as bench:
                await carry_out(plan, bench, book, progress, _now)
        finally:
            progress.end()


def _that_fits(plan: Plan, max_model_len: int | None) -> Plan:
    if max_model_len is None:
        return plan
    fitting = plan.up_to(max_model_len)
    left_out = len(plan.shapes) - len(fitting.shapes)
    if left_out:
        print(f"left out: {left_out} workloads longer than the model's {max_model_len} tokens", file=sys.stderr)
    return fitting


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _list(kind: type[Number]) -> Callable[[str], tuple[Number, ...]]:
    def parse(text: str) -> tuple[Number, ...]:
        try:
            return tuple(kind(part) for part in text.split(","))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers like 1,2,4") from None

    return parse


def _names(text: str) -> Sequence[str]:
    names = tuple(text.split(","))
    for name in names:
        if name not in KNOWN_ARMS:
            raise argparse.ArgumentTypeError(f"{name!r} is not an arm; known: {', '.join(KNOWN_ARMS)}")
    return names
