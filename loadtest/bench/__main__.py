"""`python -m loadtest.bench NAME`."""

from __future__ import annotations

import argparse
import sys

from loadtest.bench import canary, decision, engine, idle, legs, metrics, opcodes, readback, residency, tracing
from loadtest.bench import loadtest as live
from loadtest.bench.proxy import command as proxy


def main() -> int:
    """Run one benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench", description="Benchmarks of the gateway.")
    commands = parser.add_subparsers(required=True, metavar="NAME")
    canary.add_command(commands)
    decision.add_command(commands)
    engine.add_command(commands)
    idle.add_command(commands)
    legs.add_command(commands)
    metrics.add_command(commands)
    opcodes.add_command(commands)
    readback.add_command(commands)
    residency.add_command(commands)
    tracing.add_command(commands)
    proxy.add_command(commands)
    live.add_command(commands)
    options = parser.parse_args()
    status: int = options.run(options)
    return status


if __name__ == "__main__":
    sys.exit(main())
