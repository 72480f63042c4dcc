"""docs/commands.md: every command with what it takes, printed from the parsers.

Rule of this room: the tree of parsers is the only source. A command that takes every setting says so in place of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence

from gateway.ops.settings import SETTINGS

MakeParser = Callable[[Sequence[str]], argparse.ArgumentParser]
"""The command line as it is for arguments that begin like that."""

_SETTINGS = frozenset(setting.flag for setting in SETTINGS)


def page(make: MakeParser) -> str:
    """The whole page."""
    lines = [
        "# Commands",
        "",
        "Printed from the command line's own parsers by `make docs`; do not edit. Every command says the same with "
        "`--help`; `ppd-gateway completion` prints a script with which a shell completes them.",
    ]
    for name, help_text in _below(make(())):
        parser = _choices(make((name,)))[name]
        for path, words, leaf in _leaves((name,), help_text, parser):
            lines += ["", f"## `ppd-gateway {' '.join(path)}`", "", f"{words[:1].upper()}{words[1:]}."]
            lines += _table(leaf)
    return "\n".join(lines) + "\n"


def _leaves(
    path: tuple[str, ...], help_text: str, parser: argparse.ArgumentParser
) -> Iterator[tuple[tuple[str, ...], str, argparse.ArgumentParser]]:
    """The commands that can be run, with what the list of commands says of them."""
    inner = _choices(parser)
    if not inner:
        yield path, help_text, parser
    for name, words in _below(parser):
        yield from _leaves((*path, name), words, inner[name])


def _below(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Sub-commands by name, and their help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                yield choice.dest, choice.help or ""


def _choices(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Parsers of the sub-commands."""
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= action.choices
    return found


def _table(parser: argparse.ArgumentParser) -> list[str]:
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS and action.dest != "help"]
    takes_all = {flag for action in shown for flag in action.option_strings} >= _SETTINGS
    if takes_all:
        shown = [action for action in shown if not _SETTINGS & set(action.option_strings)]
    lines = ["", "| argument | |", "|---|---|"] if shown else []
    lines += [f"| {_named(action)} | {_said(action)} |" for action in shown]
    if takes_all:
        lines += ["", "And every setting as a flag ([configuration](configuration.md))."]
    return lines


def _named(action: argparse.Action) -> str:
    if action.choices is not None:
        value = "{" + ",".join(str(choice) for choice in action.choices) + "}"
    else:
        value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    names = action.option_strings or [value]
    value = f" {value}" if action.option_strings and action.nargs != 0 else ""
    return ", ".join(f"`{name}{value}`" for name in names).replace("|", "\\|")


def _said(action: argparse.Action) -> str:
    return " ".join((action.help or "").replace("%%", "%").split()).replace("|", "\\|")
