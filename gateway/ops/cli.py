"""The `ppd-gateway` command."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from gateway.core.pods import Role
from gateway.ops import keys, logs, workers
from gateway.ops.config import load
from gateway.ops.layers import ConfigError
from gateway.ops.serve import serve
from gateway.ops.settings import SETTINGS
from gateway.ops.tables import open_checked
from gateway.version import VERSION
from lut.table import TableError

EXIT_USAGE = 2
EXIT_ADDRESS = 1
EXIT_BROKEN_PIPE = 141
"""As the shell has it for SIGPIPE: the reader of our output went away."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser(serving=given[:1] == ["serve"]).parse_args(given)
    options.given = given
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except (ConfigError, TableError) as error:
        print(f"ppd-gateway: {error}", file=sys.stderr)
        return EXIT_USAGE
    return status


def _parser(*, serving: bool = False) -> argparse.ArgumentParser:
    """The command line. serving: only what a gateway needs, which spares it what the other commands load."""
    parser = argparse.ArgumentParser(
        prog="ppd-gateway", description="A gateway for multi-turn chat in front of vLLM prefill and decode pods."
    )
    parser.add_argument("--version", action="version", version=f"ppd-gateway {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    gate = commands.add_parser("serve", help="serve requests", allow_abbrev=False)
    gate.add_argument("--config", type=Path, metavar="FILE", help="TOML file; flags and PPD_… variables win over it")
    for setting in SETTINGS:
        gate.add_argument(
            setting.flag,
            dest=setting.key,
            action="append" if setting.repeatable else "store",
            metavar=setting.metavar,
            help=setting.help if setting.default in ((), None) else f"{setting.help} (default {setting.default})",
        )
    gate.add_argument("--worker", help=argparse.SUPPRESS)
    gate.add_argument("--worker-folder", type=Path, help=argparse.SUPPRESS)
    gate.set_defaults(run=_serve)
    if serving:
        return parser

    config = commands.add_parser("config", help="look at a configuration").add_subparsers(
        required=True, metavar="COMMAND"
    )
    check = config.add_parser("check", help="say whether a file is fit to serve, without starting anything")
    check.add_argument("file", type=Path, metavar="FILE")
    check.set_defaults(run=_check)
    from gateway.ops import explain
    from gateway.ops.profile import command as profile
    from lut.cli import add_commands as add_lut

    explain.add_command(commands)
    profile.add_command(commands)
    keys.add_command(commands)
    add_lut(commands)
    return parser


def _serve(options: argparse.Namespace) -> int:
    flags: dict[str, Any] = {setting.key: getattr(options, setting.key) for setting in SETTINGS}
    config = load(options.config, os.environ, flags)
    seat = None if options.worker is None else workers.seat_of(options.worker, options.worker_folder)
    access = logs.set_up(config.log_level, None if seat is None else seat.number)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if seat is not None:
                runner.run(serve(workers.config_of(config, seat), seat, access))
            elif config.workers > 1:
                if config.policy == "ppd":
                    open_checked(config.table)
                keys.check(config)
                return runner.run(workers.supervise(config, options.given))
            else:
                runner.run(serve(config, access=access))
    except OSError as error:
        print(f"ppd-gateway: cannot listen on {config.host}:{config.port}: {error.strerror}", file=sys.stderr)
        return EXIT_ADDRESS
    return 0


def _check(options: argparse.Namespace) -> int:
    config = load(options.file, os.environ, {})
    if config.policy == "ppd":
        open_checked(config.table)
    keys.check(config)
    counts = ", ".join(f"{config.count(role)} {role}" for role in Role)
    print(f"{options.file}: ok (policy {config.policy}; pods: {counts})")
    for warning in config.warnings:
        print(f"{options.file}: warning: {warning}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
