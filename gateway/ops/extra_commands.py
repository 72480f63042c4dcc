"""Commands of `ppd-gateway` whose code lies outside the gateway.

Rule of this room: names only. A module is imported when its command is the one that was called, so `serve` and the
others load nothing of it. Each has `add_command(subparsers)`, which adds one parser of that name and sets `run`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from gateway.ops.layers import ConfigError


class ExtraCommand(NamedTuple):
    """A command by its name, what the list of commands says of it, and where it is."""

    name: str
    help: str
    module: str


EXTRA_COMMANDS = (
    ExtraCommand("simulate", "try policies on simulated pods, in virtual time", "loadtest.experiments.command"),
    ExtraCommand("advise", "recommend a P:D split and weights", "loadtest.experiments.advise_command"),
    ExtraCommand("loadtest", "put load on a live deployment and measure it", "loadtest.live.command"),
)


def add_commands(commands: Any, given: Sequence[str]) -> None:
    """Mount them on an argparse sub-parser group; only the one that `given` begins with is imported.

    `completion` gets all of them that can be.

    Raises ConfigError when it cannot be, which is a package that is not installed.
    """
    for extra in EXTRA_COMMANDS:
        first = given[0] if given else None
        if first not in (extra.name, "completion"):
            commands.add_parser(extra.name, help=extra.help, add_help=False)
            continue
        try:
            module = importlib.import_module(extra.module)
        except ModuleNotFoundError as error:
            if first == "completion":
                commands.add_parser(extra.name, help=extra.help, add_help=False)
                continue
            raise ConfigError(f"{extra.name}: the module {error.name} is not installed") from None
        module.add_command(commands)
