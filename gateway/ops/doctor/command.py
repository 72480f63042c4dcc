"""`ppd-gateway doctor`: the words of the command line."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from typing import Any

import uvloop

from gateway.ops.config import load
from gateway.ops.doctor.options import Options
from gateway.ops.flags import add_flags, flags_of
from gateway.ops.layers import ConfigError


def add_command(commands: Any) -> None:
    """Mount the command on an argparse sub-parser group."""
    default = Options()
    parser = commands.add_parser(
        "doctor",
        help="look at pods, table and machine, and say what to change",
        description="Looks at everything a gateway with this configuration needs, and says what to change, with the "
        "flag. Takes what `serve` takes. Exit status: 0 all is well, 1 something to look at, 2 something to change.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="one JSON object in place of text")
    parser.add_argument("--quiet", action="store_true", help="leave out what is ok")
    parser.add_argument("--no-compute", action="store_true", help="ask pods only what they say of themselves")
    parser.add_argument(
        "--pairs", type=int, default=default.pairs, metavar="N", help=f"hand-overs to try (default {default.pairs})"
    )
    parser.add_argument(
        "--streams",
        type=int,
        default=default.streams,
        metavar="N",
        help=f"at once, that this machine is to be fit for (default {default.streams})",
    )
    parser.add_argument(
        "--limit-s",
        type=float,
        default=default.limit_s,
        metavar="S",
        help=f"for each question to a pod (default {default.limit_s:g})",
    )
    add_flags(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    for name in ("pairs", "streams"):
        if getattr(options, name) < 0:
            raise ConfigError(f"flag --{name}: must not be negative")
    if not 0 < options.limit_s <= 3600:
        raise ConfigError("flag --limit-s: must be more than 0 and at most 3600")
    config = load(options.config, os.environ, flags_of(options))
    from gateway.ops.doctor.examine import examine
    from gateway.ops.doctor.findings import as_json, as_text, exit_status

    far = Options(options.streams, options.pairs, not options.no_compute, options.limit_s)
    logging.disable(logging.WARNING)  # what the discovery would say is among the findings
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            findings = runner.run(examine(config, far))
    finally:
        logging.disable(logging.NOTSET)
    print(as_json(findings) if options.json else as_text(findings, quiet=options.quiet))
    return exit_status(findings)
