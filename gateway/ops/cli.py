"""The `ppd-gateway` command."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from gateway.core.pods import Role
from gateway.ops import keys, logs, workers
from gateway.ops.config import Config, load
from gateway.ops.flags import add_flags, flags_of
from gateway.ops.layers import ConfigError
from gateway.ops.serve import serve
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
    try:
        options = _parser(given).parse_args(given)
        options.given = given
        status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except (ConfigError, TableError) as error:
        print(f"ppd-gateway: {error}", file=sys.stderr)
        return EXIT_USAGE
    return status


def _parser(given: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The command line. A `given` that begins with serve gets only what a gateway needs, and loads nothing else."""
    parser = argparse.ArgumentParser(
        prog="ppd-gateway", description="A gateway for multi-turn chat in front of vLLM prefill and decode pods."
    )
    parser.add_argument("--version", action="version", version=f"ppd-gateway {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    gate = commands.add_parser("serve", help="serve requests", allow_abbrev=False)
    add_flags(gate)
    gate.add_argument("--worker", help=argparse.SUPPRESS)
    gate.add_argument("--worker-folder", type=Path, help=argparse.SUPPRESS)
    gate.set_defaults(run=_serve)
    if given[:1] == ["serve"]:
        return parser

    config = commands.add_parser("config", help="look at a configuration").add_subparsers(
        required=True, metavar="COMMAND"
    )
    check = config.add_parser("check", help="say whether a file is fit to serve, without starting anything")
    check.add_argument("file", type=Path, metavar="FILE")
    check.set_defaults(run=_check)
    from gateway.ops import canary_command, completion, explain, extra_commands
    from gateway.ops.doctor import command as doctor
    from gateway.ops.profile import command as profile
    from lut.cli import add_commands as add_lut

    explain.add_command(commands)
    profile.add_command(commands)
    keys.add_command(commands)
    canary_command.add_command(commands)
    doctor.add_command(commands)
    add_lut(commands)
    completion.add_command(commands, parser)
    extra_commands.add_commands(commands, given)
    return parser


def _serve(options: argparse.Namespace) -> int:
    flags = flags_of(options)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
    seat = None if options.worker is None else workers.seat_of(options.worker, options.worker_folder)

    def again() -> Config:
        found = load(options.config, os.environ, flags)
        return found if seat is None else workers.config_of(found, seat)

    config = again()
    access = logs.set_up(config.log_level, None if seat is None else seat.number, config.log_format)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if seat is not None:
                runner.run(serve(config, seat, access, again))
            elif config.workers > 1:
                if config.policy == "ppd":
                    open_checked(config.table)
                keys.check(config)
                return runner.run(workers.supervise(config, options.given))
            else:
                runner.run(serve(config, access=access, again=again))
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
    if config.discovery.any:
        counts += f", more from {', '.join(config.discovery.described)}"
    print(f"{options.file}: ok (policy {config.policy}; pods: {counts})")
    for warning in config.warnings:
        print(f"{options.file}: warning: {warning}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
